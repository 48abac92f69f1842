"""Constraints inside decoding loops of other libraries: one file for each library.

Where they agree:

    logits_processor(trie, eog=...)   what the library calls at each step
    .check()      raise what a callback could only note
    .finish(ids)  the name of the choice that came out; an error if none did
    .reset()      the next call begins a new generation

A position is derived from the ids that the library hands over, so that a call that is
repeated, left out or taken back is right, or an error.
"""
