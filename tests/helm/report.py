# SPDX-License-Identifier: Apache-2.0
"""Reports of checks: one line per check, and the counts."""

counts = {"passed": 0, "failed": 0}


def report(what: str, problems: list) -> None:
    counts["failed" if problems else "passed"] += 1
    found = " ".join("; ".join(map(str, problems)).split())
    print(f"FAIL {what}: found {found}" if problems else f"ok   {what}", flush=True)


def differs(found, expected) -> list:
    return [] if found == expected else [f"{found}, expected {expected}"]


def attempt(check, *arguments) -> None:
    """A check that raises an exception has failed."""
    try:
        check(*arguments)
    except Exception as error:  # every exception is reported
        report(f"{check.__name__} {arguments[0] if isinstance(arguments[0], str) else ''}",
               [repr(error)])
