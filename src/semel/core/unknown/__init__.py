"""Outcomes nobody knows, and how they are settled.

A record is `unknown` when a handler may have acted and nothing proves that it did: the process was
killed, a call timed out, the answer could not be kept. To run it again could charge twice; to
answer with a failure could be a lie. So the key stays closed until there is evidence:

- A probe asks the provider: it happened (with the answer to keep), it did not, or it cannot tell.
- A webhook of the provider says that it happened.
- An operator says what a look at the provider's books has shown.

"Cannot tell" settles nothing, and neither does silence. A probe that says "it did not" must be sure
that it will not happen later either. All evidence ends in `settle_unknown`, which writes only to
the record that was looked at: whoever comes second changes nothing.

    evidence          what a probe, a webhook or an operator can say
    settle_unknown    an unknown record and evidence about it; everybody ends here
    probe             ask somebody who can know
    provider_events   webhooks of providers, as evidence
"""
