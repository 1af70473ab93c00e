"""Seconds to the first failure, and to the minimal schedule, for each seeded defect: medians over ten seeds.

    python bench/time_to_find.py [--seeds 10] [DEFECT ...]

The same table as the kill matrix; the goals are 0.5 s and 1 s over all defects that need no concurrency.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "quality"))

from kill_matrix import main

if __name__ == "__main__":
    sys.exit(main())
