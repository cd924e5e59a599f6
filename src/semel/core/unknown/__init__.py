"""Outcomes nobody knows, and how they are settled.

evidence     what a probe, a webhook or an operator can say
settlement   an unknown record and evidence about it; everybody ends here
probe        ask somebody who can know
webhook      events of providers
"""
