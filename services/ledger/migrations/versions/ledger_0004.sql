-- Money that is no model request of a run. Released: never edited, only followed.
SELECT 1;
