"""The commands of `tallymark`: their names, where each is, and what it does in one line."""

from __future__ import annotations

from typing import Final

from tallymark import __version__

COMPLETE: Final = "_TALLYMARK_COMPLETE"
"""Environment variable by which a shell asks for completions."""
COMMANDS: Final = {
    "serve": ("serve", "Run a broker until SIGTERM or SIGINT."),
    "check-config": ("serve", "Show the settings as a broker would see them."),
    "doctor": ("doctor", "Look at machine, folder and settings, and say what to change."),
    "nsqd": ("nsqd", "Run a broker in nsqd's place: takes nsqd's own flags (-help shows them)."),
    "takeover": ("cluster", "Have a standby take over, though the leader may still be there."),
    "handover": ("cluster", "Have the leader stop in good order and a standby go on at once."),
    "status": ("inspect", "The broker at a glance: version, memory, journal, alarms, counts."),
    "queues": ("inspect", "Queues with the counts of their account."),
    "exchanges": ("inspect", "Exchanges of every virtual host."),
    "connections": ("inspect", "Client connections."),
    "consumers": ("inspect", "Consumers with their deliveries and settlements."),
    "top": ("top", "Queues and their rates, live; Ctrl-C ends it."),
    "get": ("messages", "Look at messages of a queue, or take them."),
    "publish": ("messages", "Publish a message."),
    "purge": ("messages", "Drop all messages of a queue that nobody holds."),
    "move": ("move", "Move messages from one queue to another, of one broker or of two."),
    "trace": ("trace", "Where a message went: its journey through every queue."),
    "shovels": ("inspect", "Shovels of a running broker, and what they have moved."),
    "what-if": ("what_if", "The ledger's traffic, played again with other settings."),
    "log-level": ("inspect", "Change a running broker's log level."),
    "demo": ("pipeline", "The play: publish, consume, crash, land through Spark, reconcile."),
    "subscription": ("inspect", "Durable subscriptions of a queue."),
    "queue": ("topology", "Queues of a running broker."),
    "exchange": ("topology", "Exchanges of a running broker."),
    "config": ("config", "The configuration of a broker."),
    "policy": ("policy", "Settings for queues and exchanges by pattern of their names."),
    "limits": ("limits", "Limits of users and virtual hosts."),
    "quarantine": ("quarantine", "Messages whose bytes cannot be read."),
    "definitions": ("definitions", "Export and import users, policies and topology."),
    "feature": ("feature", "Feature flags: which newer stored forms are written."),
    "user": ("user", "Users of a broker, stored in its data folder."),
    "backup": ("backup", "Copy a data folder while its broker runs."),
    "restore": ("backup", "Copy a backup to a new data folder."),
    "journal": ("journal", "A data folder's journal."),
    "completion": ("completion", "Completion of commands and flags, for a shell."),
    "pipeline": ("pipeline", "Data pipelines: Spark over queues and the ledger."),
}
"""Commands by name: the module of tallymark.cli, and a line of help."""
GROUPS: Final = {
    "subscription": "subscriptions",
    "queue": "queue",
    "exchange": "exchange",
    **dict.fromkeys(
        (
            "config",
            "policy",
            "limits",
            "quarantine",
            "definitions",
            "feature",
            "user",
            "journal",
            "pipeline",
        ),
        "app",
    ),
}
"""Groups of commands, and the name of their app in that module."""


def version_line() -> str:
    from tallymark import is_compiled

    return f"tallymark {__version__} ({'compiled' if is_compiled() else 'pure'})"
