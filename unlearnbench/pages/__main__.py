"""python -m unlearnbench.pages --out docs"""

from __future__ import annotations

from unlearnbench.pages.write import main

if __name__ == "__main__":
    main()
