/*
 * Several threads write to one store at once: they do not wait for each other's bytes, what one replaces is in the
 * order of those who did, and a disk that is full for one, or a capacity that is small for all, harms nothing.
 *
 * The system call by which items are written is this program's own, so that it can be held and can fail.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/time.h"
#include "tests/unit/stores.h"

enum { THREADS = 4 };

/* Writes of `size` bytes and more meet: each waits until so many are there, for a second at most. */
static struct { int meet, here, most; size_t size; int fail; } calls;

static int now(const int *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static void meet(void)
{
	int here = __atomic_add_fetch(&calls.here, 1, __ATOMIC_SEQ_CST), most = now(&calls.most);

	while (here > most && !__atomic_compare_exchange_n(&calls.most, &most, here, false, __ATOMIC_SEQ_CST,
		__ATOMIC_SEQ_CST))
		;
	for (int ms = 0; now(&calls.most) < calls.meet && ms < 1000; ms++)
		usleep(1000);
}

/* The next write of an item, or of the head of one that is deleted, is held; what was written and is not on disk. */
static struct { int item, head, held; int dirty[256]; } holds;

static void held(int *which)
{
	if (!__atomic_exchange_n(which, 0, __ATOMIC_SEQ_CST))
		return;
	__atomic_store_n(&holds.held, 1, __ATOMIC_SEQ_CST);
	for (int ms = 0; now(&holds.held) && ms < 20000; ms++)
		usleep(1000);
}

static bool is_held(void)
{
	for (int ms = 0; !now(&holds.held) && ms < 20000; ms++)
		usleep(1000);
	return now(&holds.held);
}

static void let_go(void)
{
	__atomic_store_n(&holds.held, 0, __ATOMIC_SEQ_CST);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	if (n == FRAME_HEAD_BYTES)
		held(&holds.head);
	return syscall(SYS_pwrite64, fd, p, n, at);
}

int fdatasync(int fd)
{
	if (fd < 256)
		__atomic_store_n(&holds.dirty[fd], 0, __ATOMIC_SEQ_CST);
	return (int)syscall(SYS_fdatasync, fd);
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
	size_t all = 0;

	for (int i = 0; i < n; i++)
		all += iov[i].iov_len;
	held(&holds.item);
	if (fd < 256)
		__atomic_store_n(&holds.dirty[fd], 1, __ATOMIC_SEQ_CST);
	if (!calls.meet || all < calls.size)
		return syscall(SYS_pwritev, fd, iov, (long)n, (long)at, 0L);
	meet();
	if (__atomic_fetch_sub(&calls.fail, 1, __ATOMIC_SEQ_CST) > 0) { /* a part is written; no more fits */
		syscall(SYS_pwrite64, fd, iov->iov_base, iov->iov_len / 2, at);
		__atomic_sub_fetch(&calls.here, 1, __ATOMIC_SEQ_CST);
		errno = ENOSPC;
		return -1;
	}
	__atomic_sub_fetch(&calls.here, 1, __ATOMIC_SEQ_CST);
	return syscall(SYS_pwritev, fd, iov, (long)n, (long)at, 0L);
}

struct writer { struct store *s; uint64_t from, to; size_t size; int refused; };

static void *write_some(void *ctx)
{
	struct writer *w = ctx;
	struct store_session *ss = session_of(w->s);
	enum store_put_result r;
	struct ds_err err;

	for (uint64_t n = w->from; n < w->to; n++)
		if (put_n(ss, n, w->size, NULL, &r, &err)) {
			tap_diag("item %d: %s", (int)n, err.text);
			w->refused++;
		}
	store_end(ss);
	return NULL;
}

/* Each of so many threads puts so many items, from a number on; how many were refused. */
static int write_all(struct store *s, int threads, uint64_t from, uint64_t each, size_t size)
{
	struct writer w[8];
	pthread_t t[8];
	int refused = 0;

	for (int i = 0; i < threads; i++) {
		w[i] = (struct writer){ s, from + (uint64_t)i * each, from + (uint64_t)(i + 1) * each, size, 0 };
		pthread_create(&t[i], NULL, write_some, &w[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(t[i], NULL);
		refused += w[i].refused;
	}
	return refused;
}

static void say(void *ctx, const char *line)
{
	(void)ctx;
	tap_diag("%s", line);
}

/* After the store was closed: so many of [0, n) are right at least, none is wrong, verify finds nothing. */
static void after(const char *path, uint64_t n, size_t size, size_t least, const char *what)
{
	struct store_options o = { 0 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct dir_report rep;
	struct ds_err err;
	size_t right = 0, wrong = 0;

	for (uint64_t i = 0; i < n; i++) {
		enum get_result g = get_n(ss, i, size, 0);

		right += g == GET_RIGHT;
		wrong += g == GET_WRONG || g == GET_ERROR;
	}
	store_end(ss);
	store_close(s);
	tap_ok(right >= least && !wrong, "%s: %zu of %zu are there, %zu wrong", what, right, (size_t)n, wrong);
	tap_ok(!dir_verify(path, say, NULL, &rep, &err) && !rep.torn_bytes && !rep.bad_indices, "verify finds nothing");
}

static void at_once(void)
{
	const char *path = store_path("lanes");
	struct store_options o = { .segment = 4 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss;

	memset(&calls, 0, sizeof calls);
	calls.meet = THREADS;
	calls.size = 100000;
	tap_is_int(write_all(s, THREADS, 0, 8, 200000), 0, "four threads put");
	tap_is_int(calls.most, THREADS, "they write at the same time");
	calls.meet = 0;
	ss = session_of(s);
	tap_is_int((long long)stat_of(ss).segments, THREADS, "each to a segment of its own");
	store_end(ss);
	store_close(s);
	after(path, THREADS * 8, 200000, THREADS * 8, "after closing");
	store_rm(path);
	path = store_path("lanes1");
	s = store_at(path, &o);
	for (uint64_t i = 0; i < 60; i++) {
		struct writer w = { s, i, i + 1, 200000, 0 };

		write_some(&w);
	}
	ss = session_of(s);
	tap_ok(stat_of(ss).segments <= 4, "one thread after the other fills one segment after the other: %d",
		(int)stat_of(ss).segments);
	store_end(ss);
	store_close(s);
	store_rm(path);
}

/* One of two that write at the same time finds the disk full. */
static void full(void)
{
	const char *path = store_path("lanes-full");
	struct store_options o = { .segment = 1 << 20 };
	struct store *s = store_at(path, &o);

	memset(&calls, 0, sizeof calls);
	tap_is_int(write_all(s, 1, 100, 40, 150000), 0, "something can go");
	calls.meet = 2;
	calls.size = 250000;
	calls.fail = 1;
	tap_is_int(write_all(s, 2, 0, 6, 300000), 0, "a disk that is full for one of two writers is made room on");
	tap_ok(calls.most >= 2 && calls.fail < 0, "while the other wrote");
	calls.meet = 0;
	store_close(s);
	after(path, 12, 300000, 12, "what they put");
	store_rm(path);
}

/* Many writers where little more than two segments fit. */
static void small(uint64_t capacity)
{
	const char *path = store_path("lanes-small");
	struct store_options o = { .capacity = capacity, .segment = capacity / 2 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);

	memset(&calls, 0, sizeof calls);
	tap_diag("%d KB", (int)(capacity >> 10));
	tap_is_int(write_all(s, 8, 0, tap_slow() ? 20 : 60, 9000), 0, "eight writers: nothing is refused");
	tap_ok(stat_of(ss).bytes <= capacity && stat_of(ss).evicted > 50, "the capacity holds");
	store_end(ss);
	store_close(s);
	after(path, 8 * (tap_slow() ? 20 : 60), 9000, 2, "what is left");
	store_rm(path);
}

/* ---- the order of those who replace ---- */

enum { NAMES = 3, OPS_MOST = 4000, NAMED = 5000 };

/* When each version began to be put and was acknowledged, by a clock of their own. */
static struct { uint64_t name, begin, end; bool gone; } op[OPS_MOST];
static uint64_t tick, ops;

static uint64_t size_of(uint64_t v)
{
	return 500 + random_bits(3, v) % 20000;
}

/* A later one was there when this one was seen. */
static bool stale(uint64_t v, uint64_t name, uint64_t begin, uint64_t seen)
{
	uint64_t end = v ? __atomic_load_n(&op[v].end, __ATOMIC_ACQUIRE) : begin;

	for (uint64_t w = 1; end && w < OPS_MOST; w++) {
		uint64_t e = __atomic_load_n(&op[w].end, __ATOMIC_ACQUIRE);

		if (e && op[w].name == name && op[w].begin > end && e < seen)
			return true;
	}
	return false;
}

static uint64_t next_tick(void)
{
	return __atomic_add_fetch(&tick, 1, __ATOMIC_SEQ_CST);
}

struct seen { uint8_t *p; size_t size; };

static void *seen_place(void *ctx, size_t i, const struct store_item *item)
{
	struct seen *s = ctx;

	(void)i;
	s->size = (size_t)item->size;
	s->p = malloc(s->size + 8);
	return s->p;
}

/* Which version of it is there, of those that were begun; 0: none; OPS_MOST: nonsense. */
static uint64_t version_now(struct store_session *ss, uint64_t name)
{
	struct seen s = { 0 };
	struct store_sink sink = { &s, seen_place, one_done };
	struct store_key k = key_of(NAMED + name);
	uint64_t v = OPS_MOST;
	struct ds_err err;
	size_t got;

	if (store_get(ss, &k, 1, &sink, &got, &err))
		tap_diag("get: %s", err.text);
	else if (!got)
		v = 0;
	for (uint64_t w = 1; got && w < OPS_MOST && v == OPS_MOST; w++) {
		uint8_t *want = NULL;

		if (size_of(w) != s.size)
			continue;
		want = malloc(s.size + 8);
		fill_item(want, s.size, NAMED + name, w);
		if (memcmp(want, s.p, s.size) == 0)
			v = w;
		free(want);
	}
	free(s.p);
	return v;
}

static int wrong;

static void *replace_some(void *ctx)
{
	struct store_session *ss = session_of(ctx);
	enum store_put_result r;
	struct ds_err err;
	uint64_t v;

	while ((v = __atomic_add_fetch(&ops, 1, __ATOMIC_SEQ_CST)) < OPS_MOST / (tap_slow() ? 4 : 1)) {
		struct put_how how = { .replace = true, .version = v, .sync = v % 16 == 0 };
		uint64_t name = random_bits(5, v) % NAMES, t;
		struct store_key k = key_of(NAMED + name);
		bool was;

		op[v].name = name;
		op[v].begin = next_tick();
		op[v].gone = v % 10 == 0;
		if (op[v].gone ? store_del(ss, &k, &was, &err) :
			put_n(ss, NAMED + name, size_of(v), &how, &r, &err)) {
			tap_diag("%s", err.text);
			__atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST);
			continue;
		}
		__atomic_store_n(&op[v].end, next_tick(), __ATOMIC_RELEASE);
		if (v % 4)
			continue;
		t = next_tick();
		v = version_now(ss, name);
		if (v == OPS_MOST || (v && stale(v, name, 0, t))) {
			tap_diag("name %d: version %d is seen at %d", (int)name, (int)v, (int)t);
			__atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST);
		}
	}
	store_end(ss);
	return NULL;
}

/* What is there at the end: of the versions that nothing followed one, or nothing if one of those is a deletion. */
static size_t stale_names(struct store *s)
{
	struct store_session *ss = session_of(s);
	size_t bad = 0;

	for (uint64_t name = 0; name < NAMES; name++) {
		uint64_t v = version_now(ss, name);
		bool ok = v && v < OPS_MOST && !stale(v, name, 0, UINT64_MAX);

		for (uint64_t w = 1; !v && w < OPS_MOST; w++)
			ok = ok || (op[w].end && op[w].name == name && op[w].gone && !stale(w, name, 0, UINT64_MAX));
		if (!ok)
			tap_diag("name %d: version %d at the end", (int)name, (int)v);
		bad += !ok;
	}
	store_end(ss);
	return bad;
}

static void in_order(const char *when, const struct store_options *o)
{
	const char *path = store_path("lanes-order");
	struct store *s = store_at(path, o);
	pthread_t t[THREADS];

	memset(&calls, 0, sizeof calls);
	memset(op, 0, sizeof op);
	ops = tick = 0;
	wrong = 0;
	for (int i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, replace_some, s);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	tap_diag("%s", when);
	tap_is_int(wrong, 0, "four threads replace and delete: nobody sees what was replaced before");
	tap_is_int((long long)stale_names(s), 0, "the last one stays");
	store_close(s);
	s = store_at(path, o);
	tap_is_int((long long)stale_names(s), 0, "also after a restart");
	store_close(s);
	store_rm(path);
}

/* ---- one that is overtaken ---- */

struct replacer { struct store *s; struct put_how how; int rc; };

static void *replace_one(void *ctx)
{
	struct replacer *r = ctx;
	struct store_session *ss = session_of(r->s);
	enum store_put_result how;
	struct ds_err err;

	r->rc = put_n(ss, 1, 5000, &r->how, &how, &err);
	store_end(ss);
	return NULL;
}

static void overtaken(void)
{
	const char *path = store_path("lanes-over");
	struct store_options o = { .segment = 1 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct replacer r = { s, { .replace = true, .version = 1, .sync = true }, -1 };
	struct store_key k = key_of(1);
	enum store_put_result how;
	struct ds_err err;
	int theirs[256], dirty = 0, rc;
	pthread_t t;
	bool was;

	put_n(ss, 2, 5000, NULL, &how, &err); /* begins a segment */
	memset(&holds, 0, sizeof holds);
	holds.item = 1;
	pthread_create(&t, NULL, replace_one, &r);
	tap_ok(is_held() && !put_n(ss, 1, 5000, &(struct put_how){ .replace = true, .version = 2 }, &how, &err),
		"one is replaced while an earlier one is being written");
	memcpy(theirs, holds.dirty, sizeof theirs);
	let_go();
	pthread_join(t, NULL);
	for (int i = 0; i < 256; i++)
		dirty += theirs[i] && holds.dirty[i];
	tap_ok(!r.rc && get_n(ss, 1, 5000, 2) == GET_RIGHT, "the later one is there");
	tap_is_int(dirty, 0, "and on disk, though only the earlier was asked to be");
	r.how = (struct put_how){ .replace = true, .version = 3 };
	holds.head = 1;
	pthread_create(&t, NULL, replace_one, &r);
	tap_ok(is_held(), "one is written, what it replaces is not deleted yet");
	store_deadline(ss, time_mono_ns() + 100000000);
	rc = store_del(ss, &k, &was, &err);
	tap_is_int(rc, DS_TEMP, "it is not deleted before that");
	let_go();
	pthread_join(t, NULL);
	store_deadline(ss, 0);
	tap_ok(!store_del(ss, &k, &was, &err) && was && get_n(ss, 1, 5000, 3) == GET_MISS, "but then");
	store_end(ss);
	store_close(s);
	store_rm(path);
}

int main(void)
{
	overtaken();
	at_once();
	full();
	small(128 << 10);
	small(1 << 20);
	in_order("much room", &(struct store_options){ .segment = 1 << 20 });
	in_order("little room", &(struct store_options){ .segment = 128 << 10, .capacity = 1 << 20 });
	return tap_done();
}
