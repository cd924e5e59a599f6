"""bookings"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "booking",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("agency", sa.String(40), nullable=False),
        sa.Column("room", sa.Integer(), nullable=False),
        sa.Column("night", sa.Date(), nullable=False),
    )
    op.create_index("ix_booking_agency", "booking", ["agency"])


def downgrade() -> None:
    op.drop_table("booking")
