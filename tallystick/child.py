"""Becomes the given command, as a child that ends when its owner ends.

Run as a file, before the real command: `python child.py OWNER SIGNAL USER COMMAND...`. A program of its own rather than
`preexec_fn`: that runs Python between fork and exec, which deadlocks at times once the owner has threads (librdkafka
and connection pools start some). It imports nothing of ours, so that it costs some ten milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(owner: int, death_signal: int, user: str, command: list[str]) -> None:
    # What the owner ignores or blocks is inherited; `tallystick up &` in a script would hand down an ignored SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if user:
        user_id, group_id = (int(part) for part in user.split(":"))
        os.setgroups([])
        os.setresgid(group_id, group_id, group_id)
        os.setresuid(user_id, user_id, user_id)
    # After the change of user, because the kernel forgets the signal when the user changes.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # The owner may have died before the line above; then nobody will send the signal.
    if os.getppid() != owner:
        sys.exit("the owner is gone")
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
