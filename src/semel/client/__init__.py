"""The client: one key for each logical call, the same on every try, and no call lost.

A *logical call* is one thing that you want to happen once: "charge order 17". On the wire it may
be many requests, because connections break and servers are busy.

- **Its key.** The call gets one key before the first try, and keeps it. The bytes of its body are
  made once as well. So a server that honours keys sees the same request each time, and executes it
  once. A new key would be a new operation: nothing here ever makes a second one for a call.
- **Its journal.** The call is written to a file before the first byte is sent, and its answer
  before the caller gets it. A process that dies in between leaves a *pending* call. `resume` sends
  it again, with its key. A process *holds* the calls that it works on, so that two processes do not
  work on one; a hold ends with its process, or by time. Should two work on one call all the same,
  the key still makes it one effect.
- **Its doubt.** A try that was surely not sent, or that the server says it did not execute, leaves
  no trace. Any other failed try leaves doubt: it may have been executed. Doubt never goes away
  while the call has no answer. It decides which error the caller gets, and it is why a call in
  doubt stays pending, even when this side has a bug.
- **Its budget.** Tries that fail are counted, and tries and pauses together have a time limit.
  Pauses grow, and are random, so that many clients do not come back at the same moment. When the
  budget is spent the call stays pending, for a later `resume`.
- **Its lifetime.** A server forgets keys, and then the same key is a new request. So a call is sent
  again only while its key surely counts: as long as the server has told, in its contract or with an
  earlier answer, or as ``resume_within`` says. Where nobody has told, it is reported and not sent.

call        the whole course of a call as one generator, without I/O; its budget
contract    reads a server's contract
responses   what an answer means for a call
model       a logical call, the result of a try, and the operations that `call` yields
clients     drives `call`, blocking and in asyncio
journal     the file: its rows, and which process holds a call; its statements are in sql/
keys        makes new keys, and checks yours
key_in_body puts a key into the body, for APIs that want it there
errors      how a call can end without its answer
httpx, requests, aiohttp   wrap the HTTP client that you have
"""

from __future__ import annotations

from semel.client.call import Budget
from semel.client.clients import Resumed
from semel.client.errors import (
    AnswerLost,
    BudgetSpent,
    CallError,
    CallOutcomeUnknown,
    CallRefused,
    ContractError,
    KeyExpired,
    KeyReused,
    Unanswered,
)
from semel.client.journal import CallJournal, JournaledCall, KeptAnswer
from semel.client.keys import new_key
from semel.client.model import LogicalCall

__all__ = [
    "AnswerLost",
    "Budget",
    "BudgetSpent",
    "CallError",
    "CallJournal",
    "CallOutcomeUnknown",
    "CallRefused",
    "ContractError",
    "JournaledCall",
    "KeptAnswer",
    "KeyExpired",
    "KeyReused",
    "LogicalCall",
    "Resumed",
    "Unanswered",
    "new_key",
]
