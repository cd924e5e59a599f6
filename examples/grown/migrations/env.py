"""How Alembic reaches the database; `hotel.database` knows where it is."""

from alembic import context

from hotel.database import engine
from hotel.models import Base

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
