"""One for each file of `semel/stores/sql/migrations`: each brings the schema up to date."""
