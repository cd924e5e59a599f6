"""The contract of the stores: every operation a flow may yield, with its replies.

requests      on the way of a request: claim, read, complete
maintenance   for workers, maintenance and operators
lists         pages, newest first, for people
outbox        effects, and events of providers
audit         acts are put on record and listed
erasure       a tenant's records are found and erased
resealing     what another key has sealed is found and exchanged
notables      what operators want to see later, and no record keeps
workers       who looks after the records, and when they were last seen
acts          what people and evidence do to records
handler       what a handler comes to, and operations that no store performs

Each is one atomic step, and a list looks at a bounded page. Whoever needs many of them imports this
package as one name: ``from semel.core import operations as ops``, then ``ops.Claim``.
"""

from semel.core.operations.acts import *  # noqa: F403 - no name stands in two of them
from semel.core.operations.audit import *  # noqa: F403
from semel.core.operations.erasure import *  # noqa: F403
from semel.core.operations.handler import *  # noqa: F403
from semel.core.operations.lists import *  # noqa: F403
from semel.core.operations.maintenance import *  # noqa: F403
from semel.core.operations.notables import *  # noqa: F403
from semel.core.operations.outbox import *  # noqa: F403
from semel.core.operations.requests import *  # noqa: F403
from semel.core.operations.resealing import *  # noqa: F403
from semel.core.operations.workers import *  # noqa: F403
