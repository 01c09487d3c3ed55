-- Departments' months. Released: never edited, only followed.
SELECT 1;
