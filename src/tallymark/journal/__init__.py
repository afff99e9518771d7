"""The journal: blocks on disk, one per turn of the engine. It is also the ledger.

layout    the block, byte by byte, and how it is packed; no files
unpacking a block's records
block     a block's header: read, checked, written
reading   bytes of messages, from memory or the files, with their checksums
segment   scanning a segment's bytes: sound, torn or corrupt; file names
files     the operating system's calls, in one replaceable place; one broker per folder
writer    the thread that writes and fdatasyncs
recovery  newest checkpoint and later blocks -> records; repairs after a crash
anchor    where the journal ended, recorded outside of it
spares    segments allocated ahead; the reserve for a full disk
stock     which segments are there, and how many of their bytes are needed
cleaner   the thread that writes checkpoints, strips and preallocates
home      where the journal is, if not in its folder: every change of the folder goes there, too
postgresql  that home as tables of PostgreSQL
journal   what the server calls
verify    what `tallymark journal verify` reports
"""
