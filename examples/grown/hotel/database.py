"""The engine, and a session for each request."""

import os
from collections.abc import Iterator

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

URL = os.environ.get("DATABASE_URL", "sqlite:///hotel.db")
engine = create_engine(URL)


def database() -> Iterator[Session]:
    with Session(engine) as session:
        yield session
