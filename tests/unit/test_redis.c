/* The Redis backends against servers of Debian's: one, by TCP and unix socket, and clusters of three. */
#include <pthread.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/resp.h"
#include "store/store_impl.h"
#include "tests/unit/redis_servers.h"
#include "tests/unit/redis_use.h"
#include "tests/unit/tap.h"

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
	tap_ok(get(u, 0, 100, 30, &g) == 0 && g.items == 30 && g.right && g.placed == 31, "%s: as many as are wanted",
		what);
	tap_ok(get(u, 95, 100, SIZE_MAX, &g) == 0 && g.items == 5 && g.right, "%s: up to the first that is missing",
		what);
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
		{ "a byte changed",
		"redis-cli -p %d setrange ds:ab0000000600000000000000000000ce 50000 xyzzy >/dev/null" },
		{ "a byte of its head changed",
		"redis-cli -p %d setrange ds:ab0000000600000000000000000000ce 20 x >/dev/null" },
		{ "a byte of its meta changed",
		"redis-cli -p %d setrange ds:ab0000000600000000000000000000ce 60 x >/dev/null" },
		{ "more bytes", "redis-cli -p %d append ds:ab0000000600000000000000000000ce xx >/dev/null" },
		{ "another's value", "redis-cli -p %d copy ds:ab0000000700000000000000000000" "1b "
			"ds:ab0000000600000000000000000000ce replace >/dev/null" },
		{ "a list", "(echo del ds:ab0000000600000000000000000000ce; "
			"echo lpush ds:ab0000000600000000000000000000ce a) | redis-cli -p %d >/dev/null" },
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
		bool made = put(&u, 6, 0, true, &how) == 0 && put(&u, 8, 0, true, &how) == 0 && redis_shell(&s,
			t[i].change);

		tap_ok(made && get(&u, 6, 3, SIZE_MAX, &g) == 0 && g.items == 0 && has_all(&u, 6, 1, 0, 0) &&
			get(&u, 7, 2, SIZE_MAX, &g) == 0 && g.items == 2 && g.right,
			"%s: a miss, deleted, and the others are there", t[i].what);
	}
	tap_ok(store_stat(u.ss, &st, &err) == 0 && st.corrupt == ARRAY_LEN(t), "each is counted");
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

		if (!f || !h || fputs("secret word\r\nand more\n", f) < 0 || fputs("other\n", h) < 0 || fclose(f) ||
			fclose(h))
			tap_bail("no file");
	}
	u = use(addr, &o);
	tap_ok(put(&u, 6, 0, false, &how) == 0 && get(&u, 6, 1, SIZE_MAX, &g) == 0 && g.items == 1,
		"with the password");
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
		{ "redis://127.0.0.1", 0 }, { "redis://127.0.0.1:1/5", 0 }, { "redis://[::1]:7", 0 }, { "redis://[::1]",
			0 },
		{ "redis://h:1/", 0 }, { "redis-cluster://a:1,b:2,[::1]:3", 0 }, { "redis-cluster://a", 0 },
		{ "redis://h:1/x", DS_USAGE }, { "redis://h:1/-1", DS_USAGE }, { "redis://h:x", DS_USAGE },
		{ "redis://h:70000", DS_USAGE }, { "redis://", DS_USAGE }, { "redis://:7", DS_USAGE },
		{ "redis-cluster://a:1,", DS_USAGE }, { "redis-cluster://,a:1", DS_USAGE }, { "redis-cluster://a:1/1",
		DS_USAGE },
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
		nodes[i] = (struct redis_server){ .extra = { "--cluster-enabled", "yes", "--cluster-node-timeout",
			"1000",
			"--cluster-require-full-coverage", "no", NULL } };
		redis_start(&nodes[i]);
	}
	snprintf(line, sizeof line,
		"redis-cli --cluster create %s %s %s --cluster-replicas 0 --cluster-yes >/dev/null 2>&1",
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
		"set -e; slot=$(redis-cli -p %d cluster keyslot ds:%s); for p in %d %d %d; do redis-cli -p $p cluster "
		"slots >/dev/null; done; "
		"owner=$(redis-cli -p %d cluster nodes | awk -v s=$slot '{ for (f = 9; f <= NF; f++) { if ($f ~ /\\[/) "
		"continue; "
		"split($f, r, \"-\"); if (r[2] == \"\") r[2] = r[1]; if (s >= r[1]+0 && s <= r[2]+0) print $1, $2 } }' "
		"| tail -n 1); "
		"from=${owner%%%% *}; fp=${owner#*:}; fp=${fp%%%%@*}; to=; "
		"for p in %d %d %d; do [ $p = $fp ] || { tp=$p; to=$(redis-cli -p $p cluster myid); }; done; "
		"redis-cli -p $tp cluster setslot $slot importing $from >/dev/null; "
		"redis-cli -p $fp cluster setslot $slot migrating $to >/dev/null; "
		"[ %d -lt 1 ] || redis-cli -p $fp migrate 127.0.0.1 $tp ds:%s 0 5000 >/dev/null; "
		"[ %d -lt 2 ] || for p in $tp $fp; do redis-cli -p $p cluster setslot $slot node $to >/dev/null; done",
		nodes[0].port, name, nodes[0].port, nodes[1].port, nodes[2].port, nodes[0].port, nodes[0].port,
		nodes[1].port,
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
	tap_ok(lost > 3 && got > 10 && lost + got == 40 && !other && !wrong,
		"without a node the others serve (%u, %u not)",
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

static void *several(void *arg)
{
	struct use *u = arg, mine = *u;
	enum store_put_result how;
	struct ds_err e;
	struct got g;
	bool fine = !store_begin(&mine.ss, u->s, &e);

	for (int i = 0; fine && i < 50; i++)
		fine = put(&mine, 6, 0, true, &how) == 0 && get(&mine, 0, 20, SIZE_MAX, &g) == 0 && g.right &&
		g.items == 20;
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
