"""What all workers need of the stage, imported, and its machine code loaded: by a fork server, before them.

Nothing but the server imports this module.
"""

import remap.graphstorm.job
import remap.job
from remap.strings import native

native.library()

__all__ = ["remap"]
