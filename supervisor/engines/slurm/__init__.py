"""The Slurm engine: salloc holds the job, srun runs the step, scancel signals or cancels."""
