"""The routes."""

from datetime import date
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session

from hotel.database import database
from hotel.models import Booking

AGENCIES = {"Bearer secret-of-tern": "tern travel", "Bearer secret-of-wren": "wren tours"}


class Wish(BaseModel):
    room: int
    night: date


def authenticate(request: Request) -> str:
    agency = AGENCIES.get(request.headers.get("Authorization", ""))
    if agency is None:
        raise HTTPException(401, "unknown token")
    request.state.agency = agency
    return agency


app = FastAPI()


@app.post("/bookings", status_code=201)
def book(
    wish: Wish,
    agency: Annotated[str, Depends(authenticate)],
    session: Annotated[Session, Depends(database)],
) -> dict[str, int]:
    booking = Booking(agency=agency, room=wish.room, night=wish.night)
    session.add(booking)
    session.commit()
    return {"booking": booking.id, "room": booking.room}
