"""Operations on running containers: exec, pause, ps, attach, logs."""
