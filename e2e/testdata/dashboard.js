// Drives the dashboard in a browser, as an operator would: see TestDashboard. It prints a line for each thing that it has
// seen, and throws at the first that is not so.
const { chromium } = require("playwright-core");
const { ADMIN, REPORTS, SECURED, TOKEN, CHROMIUM, SCREENSHOTS, PID } = process.env;

const servers = { seoul: ["up", "up"], virginia: ["up", "up"], tokyo: ["up", "up"], osaka: ["up", "up"] };
const addresses = { seoul: "192.0.2.1", virginia: "192.0.2.2", tokyo: "192.0.2.3", osaka: "192.0.2.4" };
const warnings = { virginia: [] };

async function report(site) {
  const body = {
    site, load: { sessions: { seoul: 400000, osaka: 999900 }[site] ?? 610000, new_sessions_per_second: 900, bits_per_second_in: 9e7, bits_per_second_out: 5e8 },
    virtual_servers: [{ name: "web", address: addresses[site], servers: servers[site].map((state, i) => ({ name: `server${i + 1}`, state, reason: "HTTP 503" })) }],
    warnings: warnings[site],
    rtts: [{ resolver: "127.0.0.1", rtt_ms: site === "seoul" ? 31.5 : 180.2, method: "icmp", age_ms: 100 },
      { resolver: "127.0.0.1", rtt_ms: 12.5, method: "dns", age_ms: 100 }].slice(0, site === "osaka" ? 2 : 1),
  };
  const response = await fetch(`http://${REPORTS}/v1/sites/${site}/report`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`report of ${site}: ${response.status} ${await response.text()}`);
}

const reportAll = () => Promise.all(Object.keys(servers).map(report));

function check(what, ok) {
  if (!ok) throw new Error(what);
  console.log("ok: " + what);
}

async function main() {
  await reportAll();
  let beat = setInterval(() => reportAll().catch(() => {}), 1000);
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
  const complaints = [];
  const watch = (page) => {
    page.on("console", (m) => { if (["error", "warning"].includes(m.type())) complaints.push(m.text()); });
    page.on("pageerror", (e) => complaints.push(e.message));
    page.on("request", (r) => { if (![ADMIN, SECURED].includes(new URL(r.url()).host) && !r.url().startsWith("data:")) complaints.push("asked " + r.url()); });
    page.setDefaultTimeout(20000);
  };
  const page = await browser.newPage({ viewport: { width: 1400, height: 1000 }, colorScheme: "dark" });
  watch(page);
  const shoot = async (name, options) => { if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/${name}.png`, ...options }); };
  const text = (selector) => page.textContent(selector);
  const shows = (selector, words) => page.waitForFunction(([s, w]) => document.querySelector(s)?.textContent.includes(w), [selector, words]);

  await page.goto(`http://${ADMIN}/`);
  await shows("#state", "live");
  await shows("#problems", "Nothing is wrong.");
  check("a well house has nothing wrong", (await page.$$("#map .mark.good")).length === 2 && (await page.title()).startsWith("gslbd"));
  check("the load is shown", (await text("#sites-rows")).includes("400 k of 900 k") && (await text("#sites-rows")).includes("1.00 M"));

  // A site fails. On a machine that is busy with something else it may take three times to see how quick the page is.
  clearInterval(beat);
  const pause = () => new Promise((done) => setTimeout(done, 1000)); // until the next report may be sent
  let quickest = Infinity;
  for (let i = 0; i < 3 && quickest >= 2000; i++) {
    await pause();
    servers.virginia = ["up", "up"];
    await reportAll();
    await shows("#problems", "Nothing is wrong.");
    await pause();
    servers.virginia = ["down", "down"];
    await report("virginia");
    const failed = Date.now();
    await shows("#problems", "is down: ");
    quickest = Math.min(quickest, Date.now() - failed);
  }
  check(`a failed site is shown within two seconds: ${quickest} ms`, quickest < 2000);
  beat = setInterval(() => reportAll().catch(() => {}), 1000);
  await shows("#events-list", "member down, www.gslb.example.com/virginia");
  await shows("#sites-rows tr:first-child", "virginia");
  check("the map shows it", (await text("#map")).includes("virginia: down"));
  check("the title tells it", (await page.title()).includes("◆1 "));
  check("a reader that sees no signs is told too", (await text("#services-rows tr")).includes("warning: ") && (await page.getAttribute("#counts", "role")) === "status");

  // What a site says of itself is text, whatever it says.
  warnings.virginia = ['<img src="/nowhere"><script>alert(1)</script>'];
  await shows("#problems", '<img src="/nowhere">');
  check("what a site says makes no markup", (await page.$$("main img, main script")).length === 0);
  warnings.virginia = [];

  // A service by keyboard.
  await page.focus("#services-rows button[data-key^=www]");
  await page.keyboard.press("Enter");
  await shows("#service", "0 of 2 servers up, 1 needed");
  check("a service opens by keyboard, and has the focus", await page.evaluate(() => document.activeElement.id === "service"));
  check("the share of answers is shown", (await text("#service")).includes("Share of answers"));

  // One that is slow does not take the place of one that was opened after it.
  await page.route("**/v1/services/www.gslb.example.com", async (route) => { await pause(); await route.continue(); });
  const slow = page.waitForResponse((r) => r.url().endsWith("/v1/services/www.gslb.example.com"));
  await page.click("#services-rows button[data-key^=www]");
  await page.click("#services-rows button[data-key^=db]");
  await shows("#service h3", "db.gslb.example.com");
  await slow;
  check("what was opened last is shown", (await text("#service h3")) === "db.gslb.example.com");
  await page.unrouteAll({ behavior: "wait" });

  // Why this answer?
  await page.fill("#explain-form [name=name]", "www.gslb.example.com");
  await page.fill("#explain-form [name=client]", "127.0.0.1");
  await page.click("#explain-form button");
  await shows("#explanation .answer", "192.0.2.1 (seoul)");
  check("the chain names who fell", (await text("#explanation .chain .fell")).includes("virginia"));
  await page.fill("#explain-form [name=name]", "nope.example.com");
  await page.click("#explain-form button");
  await shows("#explanation", "no service answers for");
  complaints.splice(0, complaints.length, ...complaints.filter((c) => !c.includes("404"))); // the browser tells of the answer itself
  await page.fill("#explain-form [name=name]", "www.gslb.example.com");
  await page.click("#explain-form button");
  await shows("#explanation .answer", "seoul");
  await shoot("down", { fullPage: true });

  servers.virginia = ["up", "up"];
  await shows("#problems", "Nothing is wrong.");

  // An evacuation: dry run, done, restored.
  await page.selectOption("#evacuate-form [name=zone]", "use1-az1");
  await page.fill("#evacuate-form [name=reason]", "INC-4711");
  await page.fill("#evacuate-form [name=author]", "kim");
  check("nothing is evacuated without a dry run", await page.isDisabled("#evacuate-go"));
  await page.click("#evacuate-form [type=submit]");
  await shows("#forecast", "Takes 1: www.gslb.example.com/virginia");
  check("a dry run changes nothing", (await text("#orders-list")).includes("nothing evacuated"));
  await (await page.$("#evacuate-form")).scrollIntoViewIfNeeded();
  await shoot("dryrun");
  await page.selectOption("#evacuate-form [name=zone]", "apne2-az1");
  check("another zone needs another dry run", await page.isDisabled("#evacuate-go") && (await text("#forecast")) === "");
  await page.route("**/v1/evacuations", async (route) => { await pause(); await route.continue(); });
  const dry = page.waitForResponse("**/v1/evacuations");
  await page.click("#evacuate-form [type=submit]");
  await page.selectOption("#evacuate-form [name=zone]", "use1-az1");
  await (await dry).finished();
  await shows("#state", "live");
  check("a dry run that comes late is not taken for one of what the form says now", await page.isDisabled("#evacuate-go") && (await text("#forecast")) === "");
  await page.unrouteAll({ behavior: "wait" });
  await page.click("#evacuate-form [type=submit]");
  await page.click("#evacuate-go:enabled");
  await page.click("#sure-yes");
  await shows("#orders-list", "Evacuation of zone use1-az1: 100 % of clients moved away");
  await shows("#map", "virginia: evacuated");
  await shows("#events-list", "evacuation ordered (member), zone use1-az1: by kim: INC-4711");
  check("an evacuation is done", (await text("#orders-said")).includes("accepted"));
  await page.click("#orders-list button");
  await page.fill("#sure [name=reason]", "mended");
  await page.click("#sure-yes");
  await shows("#orders-list", "nothing evacuated");
  check("and restored", (await text("#orders-said")).includes("restore zone use1-az1: accepted"));

  // A forced state, given and cleared.
  await page.fill("#force-form [name=target]", "seoul");
  await page.fill("#force-form [name=reason]", "power work");
  await page.click("#force-form button");
  await page.click("#sure-no");
  await shows("#orders-said", "Nothing was done.");
  await page.click("#force-form button");
  await page.click("#sure-yes");
  await shows("#orders-list", "Forced down: site seoul, 1 member");
  await page.click("#orders-list button");
  await page.fill("#sure [name=reason]", "done");
  await page.click("#sure-yes");
  await shows("#orders-list", "Nothing is forced");
  check("a forced state is given and cleared", true);
  await shows("#rtt-table", "31.5");
  const trips = "127.0.0.0/24 by dns12.5–––,127.0.0.0/24 by icmp180.231.5180.2180.2"; // looked at every 30 s
  await page.waitForFunction((t) => [...document.querySelectorAll("#rtt-table tbody tr")].map((e) => e.textContent).join() === t, trips, { timeout: 60000 });
  check("round trips by different methods are told apart", true);

  // A failover, which goes back by hand. Enter in a field of the question is yes.
  await page.evaluate(() => { Object.defineProperty(document, "hidden", { get: () => true, configurable: true }); });
  servers.tokyo = ["down", "down"];
  await page.waitForFunction(() => document.title.includes("◆"));
  check("the title tells it in a tab that is hidden", true);
  await page.evaluate(() => { delete document.hidden; });
  await shows("#problems", "its backups answer");
  await page.click("#services-rows button[data-key^=db]");
  await page.waitForSelector('#service [data-key="failback"]');
  servers.tokyo = ["up", "up"];
  await shows("#problems", "the backups are held");
  await page.click('#service [data-key="failback"]');
  await page.fill("#sure [name=reason]", "copied back");
  await page.keyboard.press("Enter");
  await shows("#orders-said", "fail back db.gslb.example.com: accepted");
  await shows("#service", "Pool: ✓ primary");
  await shows("#events-list", "failback ordered, service db.gslb.example.com: by kim: copied back");
  check("a service is sent back to its primaries", (await page.$$('#service [data-key="failback"]')).length === 0);
  await shows("#problems", "Nothing is wrong.");

  for (const [width, height] of [[360, 740], [768, 1024]]) {
    await page.setViewportSize({ width, height });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(`nothing is wider than ${width} pixels`, wide <= width);
  }
  await page.setViewportSize({ width: 390, height: 844 });
  await page.evaluate(() => scrollTo(0, 0));
  await shoot("phone");
  const unlabelled = await page.evaluate(() => [...document.querySelectorAll("input, select, button, section, .scroll")].filter((e) =>
    !(e.labels?.length || e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby"))).map((e) => e.outerHTML));
  check("everything has a name for a screen reader: " + unlabelled.join(), unlabelled.length === 0);
  await page.click("#theme");
  check("light and dark", await page.evaluate(() => document.documentElement.classList.contains("light")));
  check("no complaint of the browser: " + complaints.join("; "), complaints.length === 0);

  // A gslbd that hangs, and comes back: what is shown is of before, and nobody overlooks that.
  await page.setViewportSize({ width: 1400, height: 1000 });
  await page.click("#theme");
  process.kill(Number(PID), "SIGSTOP");
  try {
    await page.waitForSelector("#gone:not([hidden])", { timeout: 60000 });
    await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
    const top = await page.evaluate(() => document.getElementById("gone").getBoundingClientRect().top);
    check("that gslbd is gone is said in the tab, and in sight wherever one looks", (await page.title()).startsWith("✕ gone") && top >= 0 && top < 100 &&
      (await text("#gone [role=alert]")).includes("Nothing is heard of gslbd") && (await text("#state")).includes("NOT LIVE"));
    await page.evaluate(() => scrollTo(0, 0));
    await shoot("gone");
  } finally {
    process.kill(Number(PID), "SIGCONT");
  }
  await page.waitForSelector("#gone", { state: "hidden", timeout: 60000 });
  await page.waitForFunction(() => document.getElementById("state").textContent.endsWith("live"), undefined, { timeout: 60000 });
  check("and that it is back", !(await page.title()).includes("gone"));

  // A page too many is not told of events, and shows all the same.
  const crowded = await browser.newPage();
  crowded.setDefaultTimeout(20000);
  await crowded.route("**/v1/events", (route) => (route.request().headers().accept.startsWith("text/event-stream")
    ? route.fulfill({ status: 503, contentType: "application/json", body: JSON.stringify({ error: "64 callers are sent events already" }) }) : route.continue()));
  await crowded.goto(`http://${ADMIN}/`);
  await crowded.waitForSelector("#services-rows tr");
  await crowded.waitForFunction(() => document.getElementById("state").textContent.includes("looks every few seconds: 64 callers"));
  await crowded.waitForFunction(() => document.getElementById("events-list").textContent.includes("gslbd started"));
  check("a page that gets no events says why, and shows what there is", await crowded.isHidden("#gone"));
  await crowded.close();

  // So does one that a proxy keeps events from.
  const proxied = await browser.newPage();
  proxied.setDefaultTimeout(20000);
  await proxied.route("**/v1/events", (route) => (route.request().headers().accept.startsWith("text/event-stream") ? route.abort() : route.continue()));
  await proxied.goto(`http://${ADMIN}/`);
  await proxied.waitForFunction(() => document.getElementById("state").textContent.includes("events do not come through"));
  check("a page without events shows what there is", (await proxied.isHidden("#gone")) && (await proxied.textContent("#services-rows")).includes("www.gslb.example.com"));
  await proxied.close();

  // A gslbd that wants a token.
  const other = await browser.newPage();
  watch(other);
  await other.goto(`http://${SECURED}/`);
  await other.waitForSelector("#services-rows tr");
  // At once: a request of this page would be refused with it, and forget it before the next page has it.
  await other.evaluate(() => { sessionStorage.setItem("gslbd token", "wrong"); location.reload(); });
  await other.waitForSelector("#token:not([hidden])");
  check("a wrong token is asked for again, and shows nothing", await other.isHidden("#services"));
  await other.fill("#token-input", TOKEN);
  await other.keyboard.press("Enter");
  await other.waitForSelector("#services-rows tr");
  check("the token is in no address", !other.url().includes(TOKEN) && (await other.isVisible("#services")));
  const wrong = complaints.filter((c) => !c.includes("401"));
  check("no other complaint of the browser: " + wrong.join("; "), wrong.length === 0);

  clearInterval(beat);
  await browser.close();
}

main().then(() => process.exit(0), (error) => { console.error(error.stack); process.exit(1); });
