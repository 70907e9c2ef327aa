"""Tests the pages of zoolock ui in a browser.

Environment variables: UI (its address), OTHER_UI (the address of another zoolock ui), CONNECT, ZOOLOCK (the command),
CHROMIUM, SCREENSHOTS (a directory).
Optional: LEAVE_OUT (names of tests to skip, separated by spaces) and ONLY (a pattern for names of tests to run).
This script prints requests to the Rust test that started it, for actions that only the library can do."""

import importlib.resources
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import urllib.parse

from playwright.sync_api import expect, sync_playwright

UI = os.environ["UI"].rstrip("/")
OTHER_UI = os.environ["OTHER_UI"].rstrip("/")
ZOOLOCK = [os.environ["ZOOLOCK"], "--connect", os.environ["CONNECT"]]
SHOTS = pathlib.Path(os.environ["SCREENSHOTS"])
AXE = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()

# Every client that may acquire a lock may choose such names and notes.
HOSTILE = "x<img src=x onerror=alert(1)>\"'`&lt;\u202egpj"
HOSTILE_NOTE = "</text><script>alert(2)</script>\"><svg onload=alert(3)>\x1b[31m\u202e\u2066"

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=10_000)


def request(what, answer):
    """Asks the Rust test to do something, and waits for its answer."""
    print(f"PLEASE {what}", flush=True)
    received = sys.stdin.readline().strip()
    assert received == answer, received


def lock_url(name):
    return f"{UI}/lock?name={urllib.parse.quote('/locks/' + name, safe='')}"


def show(name):
    shown = subprocess.run([*ZOOLOCK, "show", "--json", name], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)


class Hold:
    """A process that holds a lock or waits for it."""

    all = []

    def __init__(self, name, note, wait_for=None):
        self.name, self.note = name, note
        pipe = subprocess.PIPE
        line = [*ZOOLOCK, "hold", name, "--note", note]
        self.process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        Hold.all.append(self)
        if wait_for is None:
            self.token = self.process.stdout.readline().strip()
            assert self.token, f"{note} does not hold {name}"
        else:
            self.wait_until(lambda: len(show(name)["waiters"]) >= wait_for)

    @staticmethod
    def wait_until(condition):
        for _ in range(400):
            if condition():
                return
            time.sleep(0.025)
        raise AssertionError("timed out")

    def release(self):
        self.process.stdin.close()

    def exit_code(self):
        return self.process.wait(timeout=20)


class Browser:
    """Opens pages, and records the errors that they report."""

    def __init__(self, chromium):
        self.chromium = chromium
        self.errors = []

    def context(self, **options):
        options.setdefault("viewport", DESKTOP)
        options.setdefault("reduced_motion", "reduce")
        context = self.chromium.new_context(**options)
        context.on("weberror", lambda error: self.errors.append(f"error: {error.error}"))
        context.on("console", self.on_console)
        context.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        context.on("requestfailed", self.on_request_failed)
        return context

    def on_console(self, message):
        # The browser logs an error for each page with one of these status codes.
        is_expected = re.search(r"status of (403|404|429)", message.text)
        if message.type in ("error", "warning") and not is_expected:
            self.errors.append(f"console: {message.text}")

    def on_request_failed(self, request):
        # Opening another page aborts the requests of the last page.
        if request.failure != "net::ERR_ABORTED":
            self.errors.append(f"request: {request.url} {request.failure}")


def screenshot(page, name):
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def tab_to(page, name):
    """Presses Tab until an element with this name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
        )
        if re.search(name, focused):
            return
    raise AssertionError(f"Tab does not reach {name}")


# ---- tests, which TESTS lists in order ----


def all_locks_are_listed(browser):
    page = browser.context().new_page()
    page.goto(UI)
    expect(page.get_by_role("columnheader", name="Longest")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("rowheader").first).to_contain_text("deploys")
    row = page.get_by_role("row").filter(has_text="deploys")
    expect(row).to_contain_text("database move")
    expect(row.get_by_role("cell").nth(3)).to_have_text("2")
    expect(page.locator("#summary")).to_contain_text("waiting")
    page.get_by_role("link", name="Waiting").click()
    expect(page.get_by_role("columnheader", name="Waiting")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("rowheader").first).to_contain_text("deploys")
    page.get_by_label("Filter").fill("nightly")
    page.get_by_label("Filter").press("Enter")
    expect(page.get_by_role("rowheader")).to_have_count(1)
    page.goto(f"{UI}/?q=nobody-has-this")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    # A new lock appears without reloading the page.
    page.goto(UI)
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    later = Hold("late", "came later")
    expect(page.get_by_role("row").filter(has_text="came later")).to_be_visible()
    later.release()
    expect(page.get_by_role("row").filter(has_text="came later")).to_have_count(0)


def hand_over_is_shown_within_a_second(browser):
    page = browser.context().new_page()
    first = Hold("live", "number one")
    second = Hold("live", "number two", wait_for=1)
    page.goto(lock_url("live"))
    expect(page.locator("#summary")).to_contain_text("number one")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.evaluate(
        """() => {
            const seen = () => {
                if (!window.seen && document.getElementById("summary").textContent.includes("number two"))
                    window.seen = Date.now();
            };
            new MutationObserver(seen).observe(document.body, {subtree: true, childList: true, characterData: true});
        }"""
    )
    page.get_by_role("link", name=re.compile("^Skip")).focus()
    released = time.time() * 1000
    first.release()
    page.wait_for_function("() => window.seen")
    delay = page.evaluate("() => window.seen") - released
    print(f"a hand-over was shown after {delay:.0f} ms")
    assert delay < 1000, f"{delay} ms"
    # The update keeps the focus.
    assert page.evaluate("() => document.activeElement.className") == "skip"
    second.release()
    expect(page.locator("#summary")).to_contain_text("Free")


def commands_are_copied_and_work(browser):
    context = browser.context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    held = Hold("copied", "in the way")
    page = context.new_page()
    page.goto(lock_url("copied"))
    row = page.get_by_role("region", name="Commands")
    expect(row).to_contain_text(held.token)
    assert_accessible(page, "a lock with commands")
    tab_to(page, "^Copy zoolock revoke")
    page.keyboard.press("Enter")
    expect(row.get_by_text("Copied", exact=True)).to_be_visible()
    copied = shlex.split(page.evaluate("() => navigator.clipboard.readText()"))
    # The options of the connection may follow.
    assert copied[:5] == ["zoolock", "revoke", "copied", "--token", held.token], copied
    subprocess.run([*ZOOLOCK, *copied[1:]], check=True)
    assert held.exit_code() == 0


def waiters_are_collapsed(browser):
    page = browser.context().new_page()
    held = Hold("crowded", "in front")
    waiters = [Hold("crowded", f"waiter {number}", wait_for=number) for number in range(1, 9)]
    page.goto(lock_url("crowded"))
    rest = page.get_by_role("region", name="Table of the other waiters")
    expect(page.get_by_role("region", name="Table of the queue").get_by_role("row")).to_have_count(7)
    expect(rest).to_have_count(0)
    screenshot(page, "collapsed")
    page.get_by_text("3 more wait").click()
    expect(rest).to_contain_text("waiter 8")
    # An update does not close the list.
    waiters[0].process.terminate()
    page.get_by_text("2 more wait").wait_for()
    expect(rest).to_contain_text("waiter 8")
    for hold in [held, *waiters]:
        hold.process.kill()


def refused_page_is_not_live(browser):
    page = browser.context().new_page()
    page.goto(f"{UI}/")
    expect(page.locator("#live")).to_have_text("live")
    page.route(f"{UI}/", lambda route: route.fulfill(status=403, body="no"))
    expect(page.locator("#live")).to_have_text("not live")
    page.unroute(f"{UI}/")
    expect(page.locator("#live")).to_have_text("live")


def open_stream_alone_is_not_live(browser):
    page = browser.context().new_page()
    page.goto(lock_url("nothing"))
    expect(page.locator("#live")).to_have_text("live")
    # As after an outage has begun: the stream opens, and has no result yet.
    events = re.compile("/events[?]")
    page.route(
        events,
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=": nothing yet\n\n"),
    )
    set_hidden(page, True)
    page.evaluate(
        """() => {
            const sign = document.getElementById("live");
            window.seen = [];
            new MutationObserver(() => window.seen.push(sign.textContent)).observe(sign, {childList: true});
        }"""
    )
    with page.expect_response(events):
        set_hidden(page, False)
    # The next request shows that the page has seen the first stream open and end.
    page.wait_for_event("response", lambda response: events.search(response.url))
    assert "live" not in page.evaluate("() => window.seen")
    page.unroute(events)
    expect(page.locator("#live")).to_have_text("live")


def set_hidden(page, hidden):
    """Makes the page believe that it is in the background, or in front."""
    value = "true" if hidden else "false"
    page.evaluate(
        f"""() => {{
            Object.defineProperty(document, "hidden", {{configurable: true, get: () => {value}}});
            document.dispatchEvent(new Event("visibilitychange"));
        }}"""
    )


def outage_is_not_live(browser):
    page = browser.context().new_page()

    def with_outage(route):
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("<main ", '<main data-outage="true" '))

    page.route(f"{UI}/", with_outage)
    page.goto(f"{UI}/")
    expect(page.locator("#live")).to_have_text("the servers do not answer")
    page.unroute(f"{UI}/")
    expect(page.locator("#live")).to_have_text("live")


def refused_event_stream_is_polled(browser):
    page = browser.context().new_page()
    page.route(f"{UI}/events*", lambda route: route.fulfill(status=429, body="no"))
    page.goto(f"{UI}/")
    expect(page.locator("#live")).to_have_text("updated every 5 s")
    hold = Hold("polled", "shown without a stream")
    expect(page.get_by_role("rowheader", name="polled")).to_be_visible()
    hold.release()
    page.unroute(f"{UI}/events*")
    expect(page.locator("#live")).to_have_text("live")


def hostile_names_are_shown_harmlessly(browser):
    Hold(HOSTILE, HOSTILE_NOTE)
    Hold(HOSTILE, HOSTILE_NOTE, wait_for=1)
    page = browser.context().new_page()
    for url in (UI, lock_url(HOSTILE)):
        page.goto(url)
        expect(page.get_by_text("<script>alert(2)</script>").first).to_be_attached()
        text = page.locator("main").inner_html()
        assert "\u202e" not in text and "\x1b" not in text and "\\u{202e}" in text, url
        assert page.locator("main script, main img, main [onload], main [onerror]").count() == 0, url
    page.goto(lock_url(HOSTILE))
    screenshot(page, "hostile")
    page.goto(f"{UI}/?q={urllib.parse.quote(HOSTILE_NOTE)}")
    expect(page.get_by_role("rowheader")).to_have_count(1)


def a_deadlock_is_shown_until_it_is_broken(browser):
    page = browser.context().new_page()
    page.goto(f"{UI}/deadlocks")
    expect(page.locator("#summary")).to_contain_text("No deadlock")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    # The list is served by another zoolock ui, so it gets no deadlock from the reads for this page.
    first_page = browser.context().new_page()
    first_page.goto(OTHER_UI)
    expect(first_page.locator("#live")).to_have_text("live")
    expect(first_page.get_by_role("alert")).to_have_count(0)
    begun = time.time()
    request("deadlock", "made")
    made = time.time()
    page.get_by_role("heading", name=re.compile("Deadlock of 3 owners")).wait_for()
    shown = time.time()
    print(f"a deadlock was shown after {shown - made:.1f} s, {shown - begun:.1f} s after its first lock")
    assert shown - made < 2
    banner = first_page.get_by_role("alert")
    banner.get_by_role("link", name="Deadlock of 3 owners").wait_for()
    print(f"the first page warned at most {time.time() - made:.1f} s after the deadlock")
    assert time.time() - made < 3
    for lock in ("invoice/7", "order/7", "parcel/7"):
        expect(banner.get_by_role("link", name=lock)).to_be_visible()
    screenshot(first_page, "locks-deadlock")
    assert_accessible(first_page, "locks with a deadlock")
    banner.get_by_role("link", name="Deadlock of 3 owners").click()
    command = first_page.get_by_text(re.compile("^zoolock break .*/7 --token"))
    expect(command).to_be_visible()
    command = shlex.split(command.text_content())
    first_page.goto(OTHER_UI)
    expect(page.locator("section.alert li")).to_have_count(3)
    page.emulate_media(color_scheme="dark")
    screenshot(page, "deadlock")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert_accessible(page, f"a deadlock, {theme}")
    subprocess.run([*ZOOLOCK, *command[1:]], check=True)
    request("all free", "free")
    expect(banner).to_have_count(0)
    expect(page.locator("#summary")).to_contain_text("No deadlock")


def pages_work_without_javascript(browser):
    page = browser.context(java_script_enabled=False).new_page()
    page.goto(UI)
    row = page.get_by_role("row").filter(has_text="deploys")
    expect(row).to_contain_text("database move")
    page.get_by_role("link", name="deploys").click()
    expect(page.locator("#summary")).to_contain_text("2 wait")
    expect(page.locator("svg.queue")).to_be_visible()
    page.get_by_role("link", name="Deadlocks").click()
    expect(page.locator("#summary")).to_contain_text("No deadlock")


def assert_accessible(page, name):
    page.evaluate(AXE)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    bad = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    violations = [(rule["id"], [node["html"] for node in rule["nodes"][:3]]) for rule in bad]
    assert not bad, f"{name}: {violations}"


def axe_finds_no_serious_violation(browser):
    for theme in ("light", "dark"):
        context = browser.context(color_scheme=theme)
        page = context.new_page()
        for name, url in {
            "locks": f"{UI}/",
            "lock": lock_url("deploys"),
            "free": lock_url("nothing"),
            "deadlocks": f"{UI}/deadlocks",
            "missing": f"{UI}/missing",
        }.items():
            page.goto(url)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert_accessible(page, f"{name}, {theme}")
            screenshot(page, f"{name}-{theme}")


def pages_fit_on_a_phone(browser):
    context = browser.context(viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    page = context.new_page()
    for name, url in {
        "locks": f"{UI}/",
        "lock": lock_url("deploys"),
        "deadlocks": f"{UI}/deadlocks",
        "hostile": lock_url(HOSTILE),
    }.items():
        page.goto(url)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= PHONE["width"], f"{name} is {width} wide"
        assert_accessible(page, f"{name} on a phone")
        screenshot(page, f"{name}-phone")


def selected_tests():
    """Returns the tests to run. Fails for an unknown name in LEAVE_OUT, because that test may have been renamed."""
    leave_out = set(os.environ.get("LEAVE_OUT", "").split())
    if unknown := leave_out - {test.__name__ for test in TESTS}:
        sys.exit(f"LEAVE_OUT: no test is named {', '.join(sorted(unknown))}; TESTS in pages.py lists them")
    only = re.compile(os.environ.get("ONLY", ""))
    return [test for test in TESTS if test.__name__ not in leave_out and only.search(test.__name__)]


def main():
    tests = selected_tests()
    SHOTS.mkdir(parents=True, exist_ok=True)
    Hold("deploys", "database move")
    Hold("deploys", "web 4.2", wait_for=1)
    Hold("deploys", "api 1.9", wait_for=2)
    Hold("nightly", "backup")
    Hold("reports/weekly", "render")
    Hold("reports/weekly", "mail", wait_for=1)
    try:
        with sync_playwright() as playwright:
            # Chromium's sandbox does not work for root, who may run the tests.
            chromium = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
            browser = Browser(chromium)
            for test in tests:
                begun = time.time()
                try:
                    test(browser)
                    assert not browser.errors, browser.errors
                except BaseException:
                    print(f"FAILED {test.__name__}", flush=True)
                    for context in chromium.contexts:
                        for page in context.pages:
                            print(page.url, page.locator("main").inner_text()[:2000])
                            screenshot(page, f"failed-{test.__name__}")
                    raise
                print(f"{test.__name__}: {time.time() - begun:.1f} s", flush=True)
                for context in chromium.contexts:
                    context.close()
            chromium.close()
    finally:
        for hold in Hold.all:
            hold.process.kill()
            hold.process.wait()
    print("all is well", flush=True)


TESTS = [
    all_locks_are_listed,
    hand_over_is_shown_within_a_second,
    a_deadlock_is_shown_until_it_is_broken,
    commands_are_copied_and_work,
    waiters_are_collapsed,
    refused_page_is_not_live,
    open_stream_alone_is_not_live,
    outage_is_not_live,
    refused_event_stream_is_polled,
    hostile_names_are_shown_harmlessly,
    pages_work_without_javascript,
    axe_finds_no_serious_violation,
    pages_fit_on_a_phone,
]

if __name__ == "__main__":
    main()
