"""How a check says what it found: one line each, and counted."""

counts = {"passed": 0, "failed": 0}


def report(what: str, problems: list) -> None:
    counts["failed" if problems else "passed"] += 1
    found = " ".join("; ".join(map(str, problems)).split())
    print(f"FAIL {what}: found {found}" if problems else f"ok   {what}", flush=True)


def differs(found, expected) -> list:
    return [] if found == expected else [f"{found}, expected {expected}"]


def attempt(check, *arguments) -> None:
    """A check that breaks off has failed."""
    try:
        check(*arguments)
    except Exception as error:  # whatever it is, it is reported
        report(f"{check.__name__} {arguments[0] if isinstance(arguments[0], str) else ''}",
               [repr(error)])
