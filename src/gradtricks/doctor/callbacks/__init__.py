"""Callbacks that record trainings whose loop another library runs, in one module for each library.

``transformers`` is for Hugging Face's `Trainer`, ``lightning`` for Lightning's, ``keras`` for `fit`. A module
imports its library, which is no dependency of this package.
"""
