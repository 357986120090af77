"""Where the command `fngd` begins: the library comes with the command, what the command needs comes with an extra."""

from __future__ import annotations


def main() -> None:
    """Run the command line; if a package of the extra `bench` is not installed, say so in one line.

    Raises:
        SystemExit: Always; with a message if a package is missing.
    """
    try:
        from fngd_bench.cli import main as run

        run()
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"fngd: the package {error.name!r} is not installed. The command needs the extra `bench`, which the "
            "library does without: pip install 'fngd[bench]', or pip install '.[bench]' in a copy of the repository"
        ) from None
