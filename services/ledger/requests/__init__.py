"""What the ledger answers: one `answer_<question>` per question."""
