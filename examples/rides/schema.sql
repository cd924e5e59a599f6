-- The application's own table, in the database that semel keeps its records in: a ride, the journal
-- entry that says it was created and the receipt in the outbox are written in one transaction.
CREATE TABLE IF NOT EXISTS rides (
    id          VARCHAR(36) PRIMARY KEY,
    rider       TEXT NOT NULL,
    pickup      TEXT NOT NULL,
    destination TEXT NOT NULL,
    fare        INTEGER NOT NULL,
    status      TEXT NOT NULL,
    charge      TEXT
);
