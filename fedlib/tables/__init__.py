"""Tables: files, summaries of columns, preprocessing, and rows that several sites have."""
