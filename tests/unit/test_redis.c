/* The Redis backends against servers of Debian's: one, by TCP and unix socket, and clusters of three. */
#include <pthread.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/resp.h"
#include "store/store_impl.h"
#include "tests/unit/redis_servers.h"
#include "tests/unit/tap.h"

#define MS ((int64_t)1000000)

static struct ds_err err;

static struct store_key key_of(unsigned i)
{
	struct store_key k = { { 0xab } };

	memcpy(k.b + 4, &i, sizeof i);
	k.b[15] = (uint8_t)(i * 77);
	return k;
}

/* What item i holds. */
static size_t item_size(unsigned i)
{
	static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, 70000, 1000001, 5 };

	return sizes[i % ARRAY_LEN(sizes)];
}

static uint8_t item_byte(unsigned i, size_t at)
{
	return (uint8_t)(at * 131 + at / 255 + i * 17);
}

/* ---- sessions ---- */

struct use { struct store *s; struct store_session *ss; };

static struct use use(const char *addr, const struct store_options *o)
{
	static const struct store_options none;
	struct use u;

	if (store_open(&u.s, addr, o ? o : &none, &err) || store_begin(&u.ss, u.s, &err))
		tap_bail("%s", err.text);
	return u;
}

static void leave(struct use *u)
{
	store_end(u->ss);
	store_close(u->s);
}

static int put(struct use *u, unsigned i, uint64_t ttl_ns, bool replace, enum store_put_result *how)
{
	struct meta_builder *b = meta_new();
	size_t n = item_size(i), half = n / 2;
	uint8_t *p = malloc(n + 1);
	struct iovec iov[2] = { { p, half }, { p + half, n - half } };
	struct store_put q = { .key = key_of(i), .meta = b, .iov = iov, .iovs = 2, .ttl_ns = ttl_ns, .replace = replace };
	int rc;

	for (size_t k = 0; k < n; k++)
		p[k] = item_byte(i, k);
	meta_put_uint(b, "i", i);
	rc = store_put(u->ss, &q, how, &err);
	meta_free(b);
	free(p);
	return rc;
}

struct got { unsigned first; uint8_t *p; size_t n, items, stop, placed; bool right; };

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct got *g = ctx;
	uint64_t v;

	g->placed++;
	g->right = g->right && i == g->items && item->size == item_size(g->first + (unsigned)i) &&
		meta_uint(item->meta, "i", &v) == META_OK && v == g->first + i;
	if (i == g->stop)
		return NULL;
	free(g->p);
	g->p = malloc(item->size + 1);
	g->n = item->size;
	return g->p;
}

static bool done(void *ctx, size_t i)
{
	struct got *g = ctx;

	for (size_t k = 0; k < g->n; k++)
		g->right = g->right && g->p[k] == item_byte(g->first + (unsigned)i, k);
	g->items++;
	return true;
}

/* Items first .. first + n: how many came; `right`: each as it was put. */
static int get(struct use *u, unsigned first, size_t n, size_t stop, struct got *g)
{
	struct store_key *keys = malloc((n + 1) * sizeof *keys);
	struct store_sink sink = { g, place, done };
	size_t got;
	int rc;

	*g = (struct got){ .first = first, .stop = stop, .right = true };
	for (size_t i = 0; i < n; i++)
		keys[i] = key_of(first + (unsigned)i);
	rc = store_get(u->ss, keys, n, &sink, &got, &err);
	g->right = g->right && got == g->items;
	free(g->p);
	free(keys);
	return rc;
}

static bool has_all(struct use *u, unsigned first, size_t n, size_t want_prefix, size_t want_here)
{
	struct store_key *keys = malloc((n + 1) * sizeof *keys);
	uint8_t *here = calloc(n + 1, 1);
	size_t prefix, row, count = 0;
	int rc;

	for (size_t i = 0; i < n; i++)
		keys[i] = key_of(first + (unsigned)i);
	rc = store_has(u->ss, keys, n, here, &prefix, &err);
	for (size_t i = 0; i < n; i++)
		count += here[i];
	if (!rc)
		rc = store_has(u->ss, keys, n, NULL, &row, &err);
	if (rc || prefix != want_prefix || row != want_prefix || count != want_here)
		tap_diag("code %d (%s), prefix %zu and %zu, there %zu", rc, rc ? err.text : "", prefix, row, count);
	free(keys);
	free(here);
	return !rc && prefix == want_prefix && row == want_prefix && count == want_here;
}

static void put_all(struct use *u, unsigned first, unsigned n, const char *what)
{
	enum store_put_result how = STORE_ALREADY;
	unsigned stored = 0;
	int rc = 0;

	for (unsigned i = first; !rc && i < first + n; i++) {
		rc = put(u, i, 0, false, &how);
		stored += !rc && how == STORE_STORED;
	}
	tap_ok(stored == n, "%s: %u items are put", what, n);
	if (rc)
		tap_diag("%s", err.text);
}

/* ---- what every kind does ---- */

static void test_all(struct use *u, const char *what)
{
	enum store_put_result how;
	struct store_stat st;
	struct got g;
	bool was;

	tap_ok(has_all(u, 0, 100, 0, 0), "%s: nothing is there", what);
	tap_ok(get(u, 0, 3, SIZE_MAX, &g) == 0 && g.items == 0, "%s: nothing to get", what);
	put_all(u, 0, 100, what);
	tap_ok(put(u, 5, 0, false, &how) == 0 && how == STORE_ALREADY, "%s: what is there is not put again", what);
	tap_ok(put(u, 5, 0, true, &how) == 0 && how == STORE_STORED, "%s: unless it is to be replaced", what);
	tap_ok(has_all(u, 0, 100, 100, 100), "%s: all are there", what);
	tap_ok(has_all(u, 90, 5000, 10, 10), "%s: and no others", what);
	tap_ok(get(u, 0, 100, SIZE_MAX, &g) == 0 && g.items == 100 && g.right, "%s: all are got as they were", what);
	tap_ok(get(u, 0, 100, 30, &g) == 0 && g.items == 30 && g.right && g.placed == 31, "%s: as many as are wanted", what);
	tap_ok(get(u, 95, 100, SIZE_MAX, &g) == 0 && g.items == 5 && g.right, "%s: up to the first that is missing", what);
	{
		struct store_key k = key_of(50);

		tap_ok(store_del(u->ss, &k, &was, &err) == 0 && was && store_del(u->ss, &k, &was, &err) == 0 && !was,
			"%s: one is deleted, once", what);
	}
	tap_ok(has_all(u, 0, 100, 50, 99), "%s: it is missing", what);
	tap_ok(get(u, 0, 100, SIZE_MAX, &g) == 0 && g.items == 50 && g.right, "%s: a get ends there", what);
	tap_ok(put(u, 200, 30 * MS, false, &how) == 0 && has_all(u, 200, 1, 1, 1), "%s: one for 30 ms", what);
	usleep(60000);
	tap_ok(get(u, 200, 1, SIZE_MAX, &g) == 0 && g.items == 0 && has_all(u, 200, 1, 0, 0), "%s: is gone then", what);
	tap_ok(store_stat(u->ss, &st, &err) == 0 && st.items == 99 && st.bytes > 1000000 && st.puts == 102 &&
		st.already == 1 && st.hits == 185 && st.misses == 4 && st.corrupt == 0, "%s: it is counted", what);
	if (st.items != 99 || st.hits != 185 || st.misses != 4 || st.puts != 102)
		tap_diag("items %llu hits %llu misses %llu puts %llu", (unsigned long long)st.items,
			(unsigned long long)st.hits, (unsigned long long)st.misses, (unsigned long long)st.puts);
}

static void test_single(void)
{
	struct redis_server s = { .extra = { NULL } };
	char addr[200];
	struct use u;

	redis_start(&s);
	snprintf(addr, sizeof addr, "redis://%s", s.addr);
	u = use(addr, NULL);
	test_all(&u, "TCP");
	leave(&u);
	snprintf(addr, sizeof addr, "redis://%s/3", s.addr);
	u = use(addr, NULL);
	test_all(&u, "database 3");
	leave(&u);
	redis_shell(&s, "redis-cli -p %d flushall >/dev/null");
	snprintf(addr, sizeof addr, "redis://unix:%s/sock", s.dir);
	u = use(addr, NULL);
	test_all(&u, "unix");
	leave(&u);
	redis_remove(&s);
}

/* ---- wrong values ---- */

static void test_wrong_values(void)
{
	static const struct { const char *what, *change; } t[] = {
		{ "nothing", "redis-cli -p %d set ds:ab0000000600000000000000000000ce '' >/dev/null" },
		{ "text", "redis-cli -p %d set ds:ab0000000600000000000000000000ce hello >/dev/null" },
		{ "a byte changed", "redis-cli -p %d setrange ds:ab0000000600000000000000000000ce 50000 xyzzy >/dev/null" },
		{ "a byte of its head changed", "redis-cli -p %d setrange ds:ab0000000600000000000000000000ce 20 x >/dev/null" },
		{ "a byte of its meta changed", "redis-cli -p %d setrange ds:ab0000000600000000000000000000ce 60 x >/dev/null" },
		{ "more bytes", "redis-cli -p %d append ds:ab0000000600000000000000000000ce xx >/dev/null" },
		{ "another's value", "redis-cli -p %d copy ds:ab0000000700000000000000000000" "1b "
			"ds:ab0000000600000000000000000000ce replace >/dev/null" },
	};
	struct redis_server s = { .extra = { NULL } };
	enum store_put_result how;
	struct store_stat st;
	char addr[200];
	struct got g;
	struct use u;

	redis_start(&s);
	snprintf(addr, sizeof addr, "redis://%s", s.addr);
	u = use(addr, NULL);
	put(&u, 7, 0, false, &how);
	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		bool made = put(&u, 6, 0, true, &how) == 0 && put(&u, 8, 0, true, &how) == 0 && redis_shell(&s, t[i].change);

		tap_ok(made && get(&u, 6, 3, SIZE_MAX, &g) == 0 && g.items == 0 && has_all(&u, 6, 1, 0, 0) &&
			get(&u, 7, 2, SIZE_MAX, &g) == 0 && g.items == 2 && g.right,
			"%s: a miss, deleted, and the others are there", t[i].what);
	}
	tap_ok(store_stat(u.ss, &st, &err) == 0 && st.corrupt == ARRAY_LEN(t), "each is counted");
	redis_shell(&s, "redis-cli -p %d lpush ds:ab0000000600000000000000000000ce a >/dev/null");
	tap_is_int(get(&u, 6, 1, SIZE_MAX, &g), DS_PROTO, "a key that holds a list");
	tap_ok(get(&u, 7, 1, SIZE_MAX, &g) == 0 && g.items == 1, "the connection goes on");
	leave(&u);
	redis_remove(&s);
}

/* ---- trouble ---- */

static void test_password(void)
{
	struct redis_server s = { .extra = { "--requirepass", "secret word", NULL } };
	char addr[200], good[100], bad[100];
	struct store_options o = { .password = good };
	enum store_put_result how;
	struct store *none;
	struct use u;
	struct got g;

	redis_start(&s);
	snprintf(addr, sizeof addr, "redis://%s", s.addr);
	snprintf(good, sizeof good, "%s/good", s.dir);
	snprintf(bad, sizeof bad, "%s/bad", s.dir);
	{
		FILE *f = fopen(good, "w"), *h = fopen(bad, "w");

		if (!f || !h || fputs("secret word\r\nand more\n", f) < 0 || fputs("other\n", h) < 0 || fclose(f) || fclose(h))
			tap_bail("no file");
	}
	u = use(addr, &o);
	tap_ok(put(&u, 6, 0, false, &how) == 0 && get(&u, 6, 1, SIZE_MAX, &g) == 0 && g.items == 1, "with the password");
	leave(&u);
	u = use(addr, NULL);
	tap_is_int(put(&u, 6, 0, false, &how), DS_CONFIG, "without it");
	tap_is_int(get(&u, 6, 1, SIZE_MAX, &g), DS_CONFIG, "nor a get");
	leave(&u);
	o.password = bad;
	u = use(addr, &o);
	tap_is_int(put(&u, 6, 0, false, &how), DS_CONFIG, "with another");
	tap_ok(!strstr(err.text, "other"), "which is not told");
	leave(&u);
	o.password = "/nonexistent/password";
	tap_is_int(store_open(&none, addr, &o, &err), DS_CONFIG, "a password file that is not there");
	redis_remove(&s);
}

static void test_addresses(void)
{
	static const struct { const char *addr; int rc; } t[] = {
		{ "redis://127.0.0.1", 0 }, { "redis://127.0.0.1:1/5", 0 }, { "redis://[::1]:7", 0 }, { "redis://[::1]", 0 },
		{ "redis://h:1/", 0 }, { "redis-cluster://a:1,b:2,[::1]:3", 0 }, { "redis-cluster://a", 0 },
		{ "redis://h:1/x", DS_USAGE }, { "redis://h:1/-1", DS_USAGE }, { "redis://h:x", DS_USAGE },
		{ "redis://h:70000", DS_USAGE }, { "redis://", DS_USAGE }, { "redis://:7", DS_USAGE },
		{ "redis-cluster://a:1,", DS_USAGE }, { "redis-cluster://,a:1", DS_USAGE }, { "redis-cluster://a:1/1", DS_USAGE },
		{ "redis://unix:", DS_USAGE },
	};
	static const struct store_options none, sync = { .sync = true };
	struct store *s;

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		int rc = store_open(&s, t[i].addr, &none, &err);

		tap_is_int(rc, t[i].rc, t[i].addr);
		if (!rc)
			store_close(s);
	}
	tap_is_int(store_open(&s, "redis://h:1", &sync, &err), DS_CONFIG, "no promise that cannot be kept");
}

/* Calls while the server is killed and started again: each ends soon, and right or with an error that fits. */
static void test_killed(void)
{
	struct redis_server s = { .extra = { NULL } };
	enum store_put_result how;
	int64_t longest = 0;
	char addr[200];
	struct got g;
	struct use u;
	bool fine = true;

	redis_start(&s);
	snprintf(addr, sizeof addr, "redis://%s", s.addr);
	u = use(addr, NULL);
	put_all(&u, 0, 20, "before");
	for (int i = 0; i < 60; i++) {
		int64_t t = time_mono_ns();
		int rc;

		if (i == 20)
			redis_kill(&s);
		if (i == 40)
			redis_start(&s);
		store_deadline(u.ss, t + 500 * MS);
		rc = i % 2 ? put(&u, 6, 0, true, &how) : get(&u, 0, 20, SIZE_MAX, &g);
		fine = fine && (i < 20 ? rc == 0 && (i % 2 || g.items == 20) : i < 40 ? rc == DS_UNAVAILABLE :
			rc == 0 || rc == DS_UNAVAILABLE) && (i % 2 || g.right);
		if (time_mono_ns() - t > longest)
			longest = time_mono_ns() - t;
		usleep(10000);
	}
	tap_ok(fine, "errors while it is down, and no others");
	tap_ok(longest < 1000 * MS, "no call takes long (%lld ms)", (long long)(longest / MS));
	usleep(2100000); /* the longest pause between two tries */
	store_deadline(u.ss, 0);
	put_all(&u, 300, 20, "after");
	tap_ok(get(&u, 300, 20, SIZE_MAX, &g) == 0 && g.items == 20 && g.right, "as before");
	redis_kill(&s);
	redis_start(&s);
	tap_ok(put(&u, 1, 0, true, &how) == 0, "one that was started anew between two calls is not noticed");
	redis_kill(&s);
	redis_start(&s);
	tap_ok(has_all(&u, 0, 50, 0, 0), "nor by has");
	redis_kill(&s);
	redis_start(&s);
	tap_ok(get(&u, 0, 5, SIZE_MAX, &g) == 0 && g.items == 0, "nor by get");
	kill(s.pid, SIGSTOP);
	store_deadline(u.ss, time_mono_ns() + 100 * MS);
	tap_is_int(put(&u, 1, 0, true, &how), DS_TEMP, "one that hangs");
	store_deadline(u.ss, time_mono_ns() + 100 * MS);
	tap_is_int(get(&u, 1, 1, SIZE_MAX, &g), DS_TEMP, "and still hangs");
	kill(s.pid, SIGCONT);
	store_deadline(u.ss, time_mono_ns() + 1000 * MS);
	usleep(200000);
	tap_ok(put(&u, 2, 0, true, &how) == 0 && get(&u, 2, 1, SIZE_MAX, &g) == 0 && g.items == 1 && g.right,
		"and goes on");
	leave(&u);
	redis_remove(&s);
}

static void test_full(void)
{
	struct redis_server s = { .extra = { "--maxmemory", "6mb", "--maxmemory-policy", "noeviction", NULL } };
	enum store_put_result how;
	char addr[200];
	struct got g;
	struct use u;
	int rc = 0;
	unsigned i;

	redis_start(&s);
	snprintf(addr, sizeof addr, "redis://%s", s.addr);
	u = use(addr, NULL);
	for (i = 0; !rc && i < 200; i++)
		rc = put(&u, 7 + 9 * i, 0, false, &how);
	tap_ok(rc == DS_TEMP && i > 2 && i < 20, "a server whose memory is full (after %u)", i);
	tap_ok(get(&u, 7, 1, SIZE_MAX, &g) == 0 && g.items == 1 && g.right, "what is there is there");
	leave(&u);
	redis_remove(&s);
}

/* ---- clusters ---- */

static struct redis_server nodes[3];

static bool cluster_start(void)
{
	char line[400];

	for (size_t i = 0; i < 3; i++) {
		nodes[i] = (struct redis_server){ .extra = { "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-require-full-coverage", "no", NULL } };
		redis_start(&nodes[i]);
	}
	snprintf(line, sizeof line, "redis-cli --cluster create %s %s %s --cluster-replicas 0 --cluster-yes >/dev/null 2>&1",
		nodes[0].addr, nodes[1].addr, nodes[2].addr);
	if (system(line) != 0)
		return false;
	for (size_t i = 0; i < 3; i++) /* each has to hear of it */
		if (!redis_shell(&nodes[i], "n=0; until redis-cli -p %d cluster info | grep -q cluster_state:ok; do "
			"n=$((n + 1)); [ $n -lt 100 ] || exit 1; sleep 0.05; done"))
			return false;
	return true;
}

/* The slot of item i is moved to another node by hand, as far as `steps` says. */
static bool move_slot(unsigned i, int steps)
{
	char line[2000], name[STORE_KEY_HEX];
	struct store_key k = key_of(i);

	store_key_hex(&k, name);
	snprintf(line, sizeof line,
		"set -e; slot=$(redis-cli -p %d cluster keyslot ds:%s); for p in %d %d %d; do redis-cli -p $p cluster slots >/dev/null; done; "
		"owner=$(redis-cli -p %d cluster nodes | awk -v s=$slot '{ for (f = 9; f <= NF; f++) { if ($f ~ /\\[/) continue; "
		"split($f, r, \"-\"); if (r[2] == \"\") r[2] = r[1]; if (s >= r[1]+0 && s <= r[2]+0) print $1, $2 } }' | tail -n 1); "
		"from=${owner%%%% *}; fp=${owner#*:}; fp=${fp%%%%@*}; to=; "
		"for p in %d %d %d; do [ $p = $fp ] || { tp=$p; to=$(redis-cli -p $p cluster myid); }; done; "
		"redis-cli -p $tp cluster setslot $slot importing $from >/dev/null; "
		"redis-cli -p $fp cluster setslot $slot migrating $to >/dev/null; "
		"[ %d -lt 1 ] || redis-cli -p $fp migrate 127.0.0.1 $tp ds:%s 0 5000 >/dev/null; "
		"[ %d -lt 2 ] || for p in $tp $fp; do redis-cli -p $p cluster setslot $slot node $to >/dev/null; done",
		nodes[0].port, name, nodes[0].port, nodes[1].port, nodes[2].port, nodes[0].port, nodes[0].port, nodes[1].port,
		nodes[2].port, steps, name, steps);
	return system(line) == 0;
}

static void test_moving(struct use *u)
{
	enum store_put_result how;
	struct got g;

	tap_ok(move_slot(10, 0) && get(u, 0, 40, SIZE_MAX, &g) == 0 && g.items == 40 && g.right,
		"a slot that is about to move");
	tap_ok(move_slot(20, 1), "the item of another has moved already");
	tap_ok(get(u, 0, 40, SIZE_MAX, &g) == 0 && g.items == 40 && g.right, "and is got (ASK)");
	tap_ok(has_all(u, 0, 40, 40, 40), "and is there");
	tap_ok(put(u, 20, 0, false, &how) == 0 && how == STORE_ALREADY, "and is not put again");
	tap_ok(put(u, 20, 0, true, &how) == 0 && how == STORE_STORED, "but where it is to be replaced");
	tap_ok(move_slot(30, 2), "a third has moved with its slot");
	tap_ok(get(u, 0, 40, SIZE_MAX, &g) == 0 && g.items == 40 && g.right, "and is got (MOVED)");
	tap_ok(has_all(u, 0, 40, 40, 40), "all are there");
	tap_ok(put(u, 30, 0, true, &how) == 0 && how == STORE_STORED && get(u, 30, 1, SIZE_MAX, &g) == 0 && g.right &&
		g.items == 1, "put and got where it is now");
}

static void test_node_lost(struct use *u)
{
	struct store_key k;
	int64_t longest = 0;
	unsigned lost = 0, got = 0, other = 0, wrong = 0;
	bool was;
	struct got g;

	redis_kill(&nodes[1]);
	for (unsigned i = 0; i < 40; i++) {
		int64_t t = time_mono_ns();
		int rc;

		store_deadline(u->ss, t + 1000 * MS);
		rc = get(u, i, 1, SIZE_MAX, &g);
		got += rc == 0 && g.items == 1;
		lost += rc == DS_UNAVAILABLE || rc == DS_TEMP;
		other += rc && rc != DS_UNAVAILABLE && rc != DS_TEMP;
		wrong += !g.right;
		if (time_mono_ns() - t > longest)
			longest = time_mono_ns() - t;
	}
	tap_ok(lost > 3 && got > 10 && lost + got == 40 && !other && !wrong, "without a node the others serve (%u, %u not)",
		got, lost);
	tap_ok(longest < 1500 * MS, "no call takes long (%lld ms)", (long long)(longest / MS));
	redis_start(&nodes[1]);
	store_deadline(u->ss, 0);
	usleep(2200000);
	got = 0;
	for (unsigned i = 0; i < 40; i++)
		got += get(u, i, 1, SIZE_MAX, &g) == 0 && g.right;
	tap_ok(got == 40, "with it again no call fails (%u)", got);
	k = key_of(3);
	tap_ok(store_del(u->ss, &k, &was, &err) == 0, "nor a del");
}

static void test_cluster(void)
{
	char addr[200];
	struct use u;

	if (!cluster_start())
		tap_bail("no cluster");
	snprintf(addr, sizeof addr, "redis-cluster://127.0.0.1:1,%s", nodes[0].addr);
	u = use(addr, NULL);
	test_all(&u, "cluster");
	put_all(&u, 50, 1, "cluster");
	leave(&u);
	snprintf(addr, sizeof addr, "redis-cluster://%s", nodes[2].addr);
	u = use(addr, NULL);
	test_moving(&u);
	test_node_lost(&u);
	leave(&u);
	snprintf(addr, sizeof addr, "redis://%s", nodes[0].addr);
	u = use(addr, NULL);
	{
		enum store_put_result how;
		int rc = 0;

		for (unsigned i = 0; !rc && i < 20; i++)
			rc = put(&u, i, 0, true, &how);
		tap_is_int(rc, DS_TEMP, "one node of a cluster without the cluster");
	}
	leave(&u);
	for (size_t i = 0; i < 3; i++)
		redis_remove(&nodes[i]);
}

/* ---- a server that means no good ---- */

struct fake {
	int fd, port;
	const char *slots;       /* the answer to CLUSTER, %d: its port */
	const char *reply;       /* to everything else, %d: its port */
	size_t repeat;           /* of the reply, for each command */
	bool closes;             /* after the first */
	_Atomic bool ending;
	_Atomic unsigned asked;
};

static size_t count_of(const char *p, size_t n, char c)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		k += p[i] == c && (i == 0 || p[i - 1] == '\n');
	return k;
}

static void say(int fd, const struct fake *f, const char *what, size_t repeat)
{
	char line[4096];
	size_t n = 0;
	const char *d = strstr(what, "%d");

	n = (size_t)(d ? snprintf(line, sizeof line, "%.*s%d%s", (int)(d - what), what, f->port, d + 2)
		: snprintf(line, sizeof line, "%s", what));
	for (size_t i = 0; i < repeat && !f->ending; i++)
		if (send(fd, line, n, MSG_NOSIGNAL) < 0)
			return;
}

static void *fake_talk(void *arg)
{
	struct { struct fake *f; int fd; } *t = arg;
	char in[8192];
	ssize_t n;

	while (!t->f->ending && (n = recv(t->fd, in, sizeof in, 0)) > 0) {
		size_t k = count_of(in, (size_t)n, '*');

		t->f->asked += (unsigned)k;
		if (n > 20 && t->f->slots && memmem(in, (size_t)n, "CLUSTER", 7))
			say(t->fd, t->f, t->f->slots, 1);
		else if (t->f->reply)
			say(t->fd, t->f, t->f->reply, k * t->f->repeat);
		if (t->f->closes)
			break;
	}
	close(t->fd);
	free(t);
	return NULL;
}

static void *fake_run(void *arg)
{
	struct fake *f = arg;
	pthread_attr_t attr;
	pthread_t t;
	int fd;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	while ((fd = accept(f->fd, NULL, NULL)) >= 0) {
		struct { struct fake *f; int fd; } *a = malloc(sizeof *a);

		a->f = f;
		a->fd = fd;
		pthread_create(&t, &attr, fake_talk, a);
	}
	return NULL;
}

static pthread_t fake_begin(struct fake *f)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	pthread_t t;

	f->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (f->fd < 0 || bind(f->fd, (struct sockaddr *)&a, sizeof a) || listen(f->fd, 64) ||
		getsockname(f->fd, (struct sockaddr *)&a, &n))
		tap_bail("no port");
	f->port = ntohs(a.sin_port);
	pthread_create(&t, NULL, fake_run, f);
	return t;
}

#define MAP_SELF "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$1\r\nx\r\n"

/* Every call ends soon, with nothing or an error, and the session can be used on. */
static void test_fakes(void)
{
	static const struct { const char *what, *slots, *reply; size_t repeat; bool closes; } t[] = {
		{ .what = "silence" },
		{ "a status for everything", NULL, "+OK\r\n", 1, false },
		{ "a number for everything", NULL, ":7\r\n", 1, false },
		{ "nil for everything", NULL, "$-1\r\n", 1, false },
		{ "two replies for one", NULL, "$-1\r\n", 2, false },
		{ "an error for everything", NULL, "-ERR no\r\n", 1, false },
		{ "an empty error", NULL, "-\r\n", 1, false },
		{ "a length of less than nothing", NULL, "$-7\r\n", 1, false },
		{ "a length of 2^62", NULL, "$4611686018427387904\r\n", 1, false },
		{ "a length of 512 MB and no bytes", NULL, "$536870912\r\n", 1, false },
		{ "a string that is cut", NULL, "$1000\r\nabc", 1, true },
		{ "an array of a million", NULL, "*1000000\r\n", 1, false },
		{ "arrays in arrays", NULL, "*1\r\n", 100000, false },
		{ "a line without an end", NULL, "+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 100000, false },
		{ "no RESP", NULL, "HTTP/1.1 400 Bad Request\r\n\r\n", 1, true },
		{ "the end at once", NULL, "", 1, true },
		{ "MOVED without a cluster", NULL, "-MOVED 1 127.0.0.1:%d\r\n", 1, false },
		{ "no map", "-ERR This instance has cluster support disabled\r\n", "$-1\r\n", 1, false },
		{ "an empty map", "*0\r\n", "$-1\r\n", 1, false },
		{ "a map of numbers", "*1\r\n:1\r\n", "$-1\r\n", 1, false },
		{ "a map of slots that are none", "*1\r\n*3\r\n:0\r\n:16384\r\n", "$-1\r\n", 1, false },
		{ "a map of slots backwards", "*1\r\n*3\r\n:9\r\n:8\r\n", "$-1\r\n", 1, false },
		{ "a map with a long name", "*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$256\r\n", "$-1\r\n", 1, false },
		{ "a map that is cut", "*1\r\n*3\r\n:0\r\n", "$-1\r\n", 1, true },
		{ "a map to nowhere", "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n", "$-1\r\n", 1, false },
		{ "MOVED without end", MAP_SELF, "-MOVED 1 127.0.0.1:%d\r\n", 1, false },
		{ "ASK without end", MAP_SELF, "-ASK 1 127.0.0.1:%d\r\n", 1, false },
		{ "MOVED to nowhere", MAP_SELF, "-MOVED 1 127.0.0.1:1\r\n", 1, false },
		{ "MOVED to nonsense", MAP_SELF, "-MOVED 99999 x\r\n", 1, false },
		{ "TRYAGAIN without end", MAP_SELF, "-TRYAGAIN\r\n", 1, false },
		{ "CLUSTERDOWN", MAP_SELF, "-CLUSTERDOWN\r\n", 1, false },
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		static struct fake fakes[ARRAY_LEN(t)]; /* threads may look at one for a while */
		struct fake *f = &fakes[i];
		enum store_put_result how;
		int64_t longest = 0;
		struct store_stat st;
		pthread_t thread;
		char addr[200];
		struct use u;
		struct got g;
		unsigned strange = 0;

		*f = (struct fake){ .slots = t[i].slots, .reply = t[i].reply, .repeat = t[i].repeat, .closes = t[i].closes };
		thread = fake_begin(f);
		snprintf(addr, sizeof addr, "redis%s://127.0.0.1:%d", t[i].slots ? "-cluster" : "", f->port);
		u = use(addr, NULL);
		for (int k = 0; k < 10; k++) {
			int64_t begin = time_mono_ns();
			uint8_t here[3];
			struct store_key keys[3] = { key_of(1), key_of(2), key_of(3) };
			size_t prefix;
			bool was;
			int rc;

			store_deadline(u.ss, begin + 60 * MS);
			rc = k % 5 == 0 ? get(&u, 0, 3, SIZE_MAX, &g) : k % 5 == 1 ? store_has(u.ss, keys, 3, here, &prefix, &err) :
				k % 5 == 2 ? put(&u, 6, 0, false, &how) : k % 5 == 3 ? store_del(u.ss, keys, &was, &err) :
				store_stat(u.ss, &st, &err);
			strange += (k % 5 == 0 && (g.items || g.placed)) || (rc && rc != DS_PROTO && rc != DS_TEMP &&
				rc != DS_UNAVAILABLE);
			if (time_mono_ns() - begin > longest)
				longest = time_mono_ns() - begin;
		}
		tap_ok(!strange && longest < 600 * MS && f->asked < 3000, "%s: every call ends, nothing is got (%lld ms, %u asked)",
			t[i].what, (long long)(longest / MS), f->asked);
		f->ending = true;
		leave(&u);
		shutdown(f->fd, SHUT_RDWR);
		pthread_join(thread, NULL);
		close(f->fd);
	}
	usleep(50000);
}

static void *several(void *arg)
{
	struct use *u = arg, mine = *u;
	enum store_put_result how;
	struct ds_err e;
	struct got g;
	bool fine = !store_begin(&mine.ss, u->s, &e);

	for (int i = 0; fine && i < 50; i++)
		fine = put(&mine, 6, 0, true, &how) == 0 && get(&mine, 0, 20, SIZE_MAX, &g) == 0 && g.right && g.items == 20;
	store_end(mine.ss);
	return fine ? u : NULL;
}

static void test_threads(void)
{
	struct redis_server s = { .extra = { NULL } };
	pthread_t t[4];
	char addr[200];
	struct use u;
	bool fine = true;

	redis_start(&s);
	snprintf(addr, sizeof addr, "redis://unix:%s/sock", s.dir);
	u = use(addr, NULL);
	put_all(&u, 0, 20, "threads");
	for (size_t i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, several, &u);
	for (size_t i = 0; i < 4; i++) {
		void *p;

		pthread_join(t[i], &p);
		fine = fine && p;
	}
	tap_ok(fine, "four threads, each with a session");
	leave(&u);
	redis_remove(&s);
}

int main(void)
{
	test_addresses();
	test_fakes();
	if (!redis_here()) {
		tap_skip("redis-server is not here");
		return tap_done();
	}
	test_single();
	test_wrong_values();
	test_password();
	test_full();
	test_killed();
	test_threads();
	test_cluster();
	return tap_done();
}
