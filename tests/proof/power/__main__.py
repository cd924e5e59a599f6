"""``python -m tests.proof.power PLANS RESULT``: recordings, cut where the plans say."""

import sys

from tests.proof.power.campaign import main

main(*sys.argv[1:])
