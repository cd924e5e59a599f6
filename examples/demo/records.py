"""What semel knows of a payment, read from the store itself; and the operator's settling hand."""

from __future__ import annotations

import os
from dataclasses import dataclass

from examples.demo.app import POLICY, receipt
from examples.demo.ledger import Charge
from semel.core.operations.acts import act
from semel.core.operations.requests import Applied, Found, Read, SettleHappened
from semel.core.records import Fence, Identity, Record
from semel.core.request import keys
from semel.core.request.keys import Scope
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
from semel.stores import open_backend


@dataclass(frozen=True, slots=True)
class PaymentName:
    """How a payment is known to semel: by merchant, method, path and key."""

    merchant: str
    key: str

    @property
    def identity(self) -> Identity:
        return Identity(keys.identity(Scope(self.merchant, "POST", "/payments"), self.key))

    def downstream_key(self, record: Record) -> str:
        """The key under which the provider's ledger knows it."""
        return keys.downstream_key(self.identity, record.created_at, "call", "charge")


class PaymentRecords:
    """The API's store, opened a second time from this process."""

    def __init__(self, url: str) -> None:
        self._backend = open_backend(url)

    def read(self, name: PaymentName) -> Record | None:
        reply = self._backend.blocking().perform(Read(name.identity))
        return reply.record if isinstance(reply, Found) else None

    def settle(self, name: PaymentName, charge: Charge) -> bool:
        """Decide an unknown record by the provider's ledger: it did happen, here is the answer."""
        record = self.read(name)
        if record is None:
            return False
        body = receipt(charge)
        answer = Snapshot(201, ((b"content-type", b"application/json"),), body, len(body))
        reply = self._backend.blocking().perform(
            SettleHappened(
                identity=name.identity,
                seen=record.fence,
                fence=Fence(os.urandom(16)),
                snapshot=snapshot.encode(answer),
                retention=POLICY.retention_micros,
                tombstone=POLICY.tombstone_micros,
                act=act("demo", f"in the provider's ledger: {charge.id}"),
            )
        )
        return isinstance(reply, Applied)

    def close(self) -> None:
        self._backend.close()
