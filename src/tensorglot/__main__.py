"""`python -m tensorglot`"""

from tensorglot.cli import main

main()
