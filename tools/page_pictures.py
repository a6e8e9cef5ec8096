"""Take the pictures of the status page in docs/images from a prober, after `prober demo` has run for about ten minutes.

python tools/page_pictures.py [URL of the prober]

The pictures are large; `pngquant --force --ext .png 128 docs/images/page-*.png` reduces them to a third.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs/images"
# Path on the prober, size and colour scheme of each picture.
PICTURES = {
    "page-fleet": ("/", ViewportSize(width=1280, height=1150), "light"),
    "page-slow": ("/?target=full", ViewportSize(width=1280, height=1500), "light"),
    "page-phone": ("/?target=full", ViewportSize(width=360, height=1000), "dark"),
}


def main(url: str) -> None:
    """Write all pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (path, size, scheme) in PICTURES.items():
            page = browser.new_page(viewport=size, color_scheme="dark" if scheme == "dark" else "light")
            page.goto(url.rstrip("/") + path)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9742")
