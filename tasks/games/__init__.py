"""Games with exact answers: what learners, doors and curricula can be judged against."""
