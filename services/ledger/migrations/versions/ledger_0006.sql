-- The life of a run. Released: never edited, only followed.
SELECT 1;
