"""What every test runs under.

The hypothesis profile is chosen by HYPOTHESIS_PROFILE: `default`, or `thorough` for a long search. A failing example is
printed with the blob that replays it.
"""

import os

from hypothesis import settings

# No deadline: a sync of the disk takes as long as the machine likes, which says nothing about the code.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
