/* A directory remembers how much it may hold, and whoever writes keeps to it. */
#include <pthread.h>
#include <unistd.h>

#include "base/time.h"
#include "tests/unit/stores.h"

enum { SIZE = 20000, MANY = 200 };

static uint64_t on_disk(const char *path)
{
	const char *kinds[] = { ".seg", ".idx" };
	char names[512][64], file[700];
	uint64_t sum = 0;
	struct stat st;

	for (int k = 0; k < 2; k++)
		for (int i = store_files(path, kinds[k], names, 512); i-- > 0;) {
			snprintf(file, sizeof file, "%s/%.63s", path, names[i]);
			sum += stat(file, &st) ? 0 : (uint64_t)st.st_size;
		}
	return sum;
}

/* Puts items first to first + MANY, 4 MB; returns the most that the files had. */
static uint64_t fill(struct store *s, const char *path, uint64_t first)
{
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	uint64_t most = 0, now;
	struct ds_err err;

	for (uint64_t n = first; n < first + MANY; n++) {
		if (put_n(ss, n, SIZE, NULL, &r, &err))
			tap_diag("put: %s", err.text);
		now = on_disk(path);
		most = now > most ? now : most;
	}
	store_end(ss);
	return most;
}

static uint64_t capacity_of(struct store *s)
{
	struct store_session *ss = session_of(s);
	uint64_t n = stat_of(ss).capacity;

	store_end(ss);
	return n;
}

static void say(const char *path, const char *text)
{
	char file[700];
	FILE *f;

	snprintf(file, sizeof file, "%s/capacity", path);
	f = fopen(file, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		tap_bail("cannot write %s", file);
}

static void remembered(const char *path)
{
	struct store_options said = { .capacity = 1 << 20 }, none = { 0 };
	struct store *s = store_at(path, &said);
	uint64_t most;

	store_close(s);
	s = store_at(path, &none);
	most = fill(s, path, 0);
	tap_is_int((long long)capacity_of(s), 1 << 20, "what a directory may hold is remembered");
	tap_ok(most <= 1 << 20 && most > 1 << 19, "and kept to by who says nothing: %d bytes", (int)most);
	store_close(s);
	s = store_at(path, &(struct store_options){ .read_only = true });
	tap_is_int((long long)capacity_of(s), 1 << 20, "who only reads it knows it, too");
	store_close(s);
}

static void changed(const char *path)
{
	struct store_options none = { 0 };
	struct store *a = store_at(path, &none), *b;
	uint64_t most;

	b = store_at(path, &(struct store_options){ .capacity = 2 << 20 });
	fill(a, path, 1000);
	most = fill(a, path, 2000);
	tap_ok(most > 3 << 19 && most <= 2 << 20, "what another process says is kept to by who runs: %d bytes",
		(int)most);
	say(path, "512K\n");
	fill(a, path, 3000);
	fill(b, path, 4000);
	most = on_disk(path);
	tap_ok(most <= 512 << 10, "so is what is written to the file: %d bytes", (int)most);
	tap_is_int((long long)capacity_of(a), 512 << 10, "and told");
	say(path, "a lot\n");
	fill(a, path, 5000);
	tap_is_int((long long)capacity_of(a), 512 << 10, "what is no size is passed over by who runs");
	store_close(a);
	store_close(b);
	a = store_at(path, &(struct store_options){ .capacity = STORE_NO_LIMIT });
	b = store_at(path, &none);
	tap_is_int((long long)capacity_of(b), 0, "a limit can be taken away");
	tap_ok(fill(b, path, 6000) > 3 << 20, "and then there is none");
	store_close(a);
	store_close(b);
}

static int open_code(const char *path, const char *option, const struct store_options *o, const char *why)
{
	struct store *s = NULL;
	struct ds_err err = { 0 };
	char addr[700];
	int rc;

	snprintf(addr, sizeof addr, "dir:%s%s", path, option);
	rc = store_open(&s, addr, o, &err);
	store_close(s);
	return rc && !strstr(err.text, why) ? -1 : rc;
}

static void addresses(const char *path)
{
	struct store_options none = { 0 }, said = { .capacity = 1 << 20 }, ro = { .read_only = true };
	struct store *s;

	tap_is_int(open_code(path, "?capacity=3M", &none, ""), 0, "an address says a capacity");
	s = store_at(path, &none);
	tap_is_int((long long)capacity_of(s), 3 << 20, "which is remembered");
	store_close(s);
	tap_is_int(open_code(path, "?capacity=3Q", &none, "no size"), DS_USAGE, "one that is no size is refused");
	tap_is_int(open_code(path, "?cap=3M", &none, "'capacity=SIZE'"), DS_USAGE, "no other option is passed over,");
	tap_is_int(open_code(path, "?capacity=3M?capacity=2M", &none, "once"), DS_USAGE, "nor a second one");
	tap_is_int(open_code(path, "?capacity=1K", &none, "the least is"), DS_USAGE, "one that is too small, too");
	tap_is_int(open_code(path, "?capacity=1M", &said, "twice"), DS_USAGE, "one that is said twice is refused");
	tap_is_int(open_code(path, "?capacity=1M", &ro, "only read"), DS_USAGE, "one without effect is refused");
	say(path, "a lot\n");
	tap_is_int(open_code(path, "", &none, "/capacity' is no size"), DS_CONFIG, "a file that says no size, too");
	tap_is_int(open_code(path, "", &ro, ""), 0, "but not for who only reads");
	tap_is_int(open_code(path, "", &said, ""), 0, "nor where it is said");
	tap_is_int(open_code(path, "?capacity=0", &none, ""), 0, "0 is no limit");
	s = store_at(path, &none);
	tap_is_int((long long)capacity_of(s), 0, "for all");
	store_close(s);
}

static void remove_all(const char *path)
{
	store_rm(path);
	if (access(path, F_OK) == 0)
		tap_bail("%s is still there", path);
}

/* The fault: who ran already went on to write into what it had begun when it might hold more. */
static void lowered(void)
{
	struct store_options o = { .capacity = STORE_NO_LIMIT };
	const char *path = store_path("lowered");
	struct store *s = store_at(path, &o);
	uint64_t at = 0;

	fill(s, path, 0);
	fill(s, path, MANY);
	say(path, "1M\n");
	for (int i = 0; i < 100 && capacity_of(s) != 1 << 20; i++)
		usleep(100000);
	for (int i = 0; i < 3; i++)
		at = fill(s, path, (uint64_t)(i + 2) * MANY);
	tap_ok(capacity_of(s) == 1 << 20 && at <= 1 << 20, "what was begun when there was no limit is no longer "
		"written to: %llu bytes", (unsigned long long)at);
	store_close(s);
	store_rm(path);
}

static bool put_one(struct store *s, uint64_t n)
{
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err;
	int rc;

	store_deadline(ss, time_mono_ns() + 2000000000);
	rc = put_n(ss, n, 3000, NULL, &r, &err);
	store_end(ss);
	return !rc;
}

/* The fault: room that one store had begun to write in, and no longer did, was kept from the others for ever. */
static void idle(void)
{
	struct store_options o = { .capacity = 64 << 10 };
	const char *path = store_path("idle");
	struct store *a = store_at(path, &o), *b = store_at(path, &o);
	bool first = put_one(a, 1), other = false;

	for (int i = 0; i < 100 && !other; i++) {
		other = put_one(b, 2);
		usleep(100000);
	}
	tap_ok(first && other, "what one store no longer writes to gives way to another");
	store_close(a);
	store_close(b);
	store_rm(path);
}

struct churn { struct store *s; uint64_t seed; int64_t until, slowest; };

static void *churn_some(void *ctx)
{
	struct churn *c = ctx;
	struct store_session *ss = session_of(c->s);
	enum store_put_result r;
	struct ds_err err;

	for (uint64_t i = 0; time_mono_ns() < c->until; i++) {
		uint64_t n = random_bits(c->seed, i);
		int64_t began = time_mono_ns(), took;

		store_deadline(ss, began + (int64_t)20000000000);
		if (n % 4)
			put_n(ss, n % 40, 1000 + n % 15000, &(struct put_how){ .replace = n % 3 > 0, .version = 1 },
				&r, &err);
		else
			get_n(ss, n % 40, 0, 1);
		took = time_mono_ns() - began;
		c->slowest = took > c->slowest ? took : c->slowest;
	}
	store_end(ss);
	return NULL;
}

/* The fault: who waited under the directory's lock for all writing to stop was not told that it had. */
static void said_anew(void)
{
	static const char *const caps[] = { "200K\n", "1M\n", "3M\n", "64K\n" };
	struct store_options o = { .segment = 64 << 10, .capacity = 1 << 20 };
	const char *path = store_path("anew");
	struct store *s[2] = { store_at(path, &o), store_at(path, &o) };
	struct churn c[8];
	pthread_t t[8];
	int64_t slowest = 0;

	for (int i = 0; i < 8; i++) {
		c[i] = (struct churn){ s[i % 2], (uint64_t)i + 100, time_mono_ns() + (int64_t)6000000000, 0 };
		pthread_create(&t[i], NULL, churn_some, &c[i]);
	}
	for (int i = 0; i < 50; i++) {
		say(path, caps[i % 4]);
		usleep(100000);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i], NULL);
		slowest = c[i].slowest > slowest ? c[i].slowest : slowest;
	}
	tap_ok(slowest < (int64_t)8000000000, "nobody waits long while capacities change: %lld ms at most",
		(long long)(slowest / 1000000));
	store_close(s[0]);
	store_close(s[1]);
	store_rm(path);
}

/* Written without a limit, it is all in one file, which is over the limit alone. */
static void one_file(const char *path)
{
	enum { ALL = 130, LESS = 2 << 20 };
	struct store_options free_of = { .capacity = STORE_NO_LIMIT }, small = { .capacity = LESS };
	struct store *s = store_at(path, &free_of);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct dir_report report;
	struct store_stat st;
	struct ds_err err;
	size_t wrong = 0, first = 0;

	for (uint64_t n = 0; n < ALL; n++)
		wrong += put_n(ss, n, SIZE, NULL, &r, &err) != 0;
	store_end(ss);
	store_close(s);
	tap_ok(!wrong && store_files(path, ".seg", NULL, 0) == 1, "all is in one file");
	s = store_at(path, &small);
	ss = session_of(s);
	st = stat_of(ss);
	tap_ok(st.bytes <= LESS && st.items * SIZE > LESS * 3 / 4 && st.items + st.evicted == ALL,
		"of it stays what there is room for: %d, %d go", (int)st.items, (int)st.evicted);
	while (first < ALL && !has_n(ss, first))
		first++;
	tap_is_int((long long)(ALL - first), (long long)st.items, "the youngest");
	for (uint64_t n = first; n < ALL; n++)
		wrong += get_n(ss, n, SIZE, 0) != GET_RIGHT;
	tap_ok(!wrong, "every byte of them is right");
	store_end(ss);
	store_close(s);
	tap_ok(!dir_gc(path, &small, NULL, NULL, &report, &err) && !report.evicted, "gc with the same gives up none");
	small.capacity = LESS / 2;
	wrong = dir_gc(path, &small, NULL, NULL, &report, &err) != 0;
	tap_ok(!wrong && report.evicted && report.evicted_bytes && report.items * SIZE > LESS / 2 / 2,
		"with less it says how many: %d, %d stay", (int)report.evicted, (int)report.items);
	st.bytes = report.bytes;
	tap_ok(!dir_verify(path, NULL, NULL, &report, &err) && report.bytes == st.bytes,
		"verify counts the bytes that stat does");
	store_rm(path);
}

int main(void)
{
	const char *path = store_path("capacity");

	remembered(path);
	changed(path);
	addresses(path);
	remove_all(path);
	lowered();
	idle();
	said_anew();
	one_file(store_path("one"));
	return tap_done();
}
