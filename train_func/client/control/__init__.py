"""What a user does to a job that exists: cancel it, change or move its workers, remove its run."""
