"""What is sent and when: due times, lengths, prompts. No clock and no randomness of its own."""
