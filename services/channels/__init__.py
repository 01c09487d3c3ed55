"""Publishers: the typed client, and the importer of transcripts. No room: it keeps no database."""
