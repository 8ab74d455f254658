"""A real model on this machine: llama.cpp in a supervised child process."""
