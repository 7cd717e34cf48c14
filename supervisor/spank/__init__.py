"""A site's scripts at each phase of a job, as spank-lua(8) has them."""
