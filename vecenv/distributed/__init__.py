"""Training on several processes and machines, by engines that exist: what runs is named by rows, never by ranks."""
