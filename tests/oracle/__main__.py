"""`make oracle`: what agrees, what differs and why; fails where something is unexplained or too little agrees."""

import sys

from tests.oracle.run import faults, flavour_lines, judge_expectations, judge_recordings, report


def main() -> int:
    recorded, priced = judge_recordings(), judge_expectations()
    for line in report(recorded, priced):
        print(line)
    print("", *flavour_lines(), sep="\n")
    found = faults(recorded, priced)
    for fault in found:
        print(f"FAULT {fault}")
    return 1 if found else 0


sys.exit(main())
