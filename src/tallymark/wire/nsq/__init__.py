"""NSQ's protocol V2 as bytes, commands, frames and legal states. Without I/O, without a clock."""
