/* One directory, several processes, several threads each. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "base/time.h"
#include "tests/unit/stores.h"

enum { THREADS = 4, KEYS = 600, CAPACITY = 12 << 20 };

static struct shared { uint64_t wrong, errors, hits, puts, deleted, refs, synced, stats, evicted; int go; } *shared;

static size_t size_of(uint64_t n)
{
	return n % 50 ? random_bits(3, n) % 60000 : random_bits(3, n) % 400000;
}

#define ADD(field, n) __atomic_fetch_add(&shared->field, (n), __ATOMIC_RELAXED)

/* As a client that gets a descriptor reads it: any item whose frame is right must be the one that was asked for. */
static void read_ref(struct store_session *ss, uint64_t n)
{
	struct store_key k = key_of(n);
	struct frame_parser *parser;
	struct store_item item;
	struct store_ref ref;
	struct ds_err err;
	struct frame f;
	uint8_t *p;
	int rc = ss->store->ops->find(ss, &k, &ref, &err);

	if (rc) {
		ADD(errors, rc != DS_NO);
		return;
	}
	p = malloc(ref.head_bytes + ref.data_bytes);
	if (frame_parser_new(&parser, &err) || pread(ref.fd, p, ref.head_bytes + ref.data_bytes, (off_t)ref.offset) !=
		(ssize_t)(ref.head_bytes + ref.data_bytes))
		ADD(errors, 1);
	else if (frame_parse(parser, p, ref.head_bytes + ref.data_bytes, &f, &err))
		ADD(wrong, 1);
	else if (f.type == FRAME_STORE && (store_item_get(&f, &item, &err) || !store_key_equal(&item.key, &k) ||
		frame_check_payload(&f, &err)))
		ADD(wrong, 1);
	ADD(refs, 1);
	frame_parser_free(parser);
	free(p);
	ss->store->ops->release(ss, &ref);
}

static void one_op(struct store_session *ss, uint64_t x)
{
	uint64_t n = x % 3 ? random_bits(6, x) % KEYS : random_bits(7, x) % (KEYS / 8);
	struct put_how how = { .sync = random_bits(9, x) % 4 == 0 };
	struct store_key k = key_of(n);
	enum store_put_result r;
	enum get_result g;
	struct ds_err err;
	struct store_stat st;
	bool was = false;

	switch (random_bits(8, x) % 16) {
	case 0: case 1: case 2: case 3:
		err.code = 0;
		ADD(synced, how.sync);
		if (put_n(ss, n, size_of(n), &how, &r, &err)) {
			ADD(errors, 1);
			tap_diag("put: %s", err.text);
		}
		else
			ADD(puts, r == STORE_STORED);
		break;
	case 4:
		ADD(errors, store_del(ss, &k, &was, &err) != 0);
		ADD(deleted, was);
		break;
	case 5: case 6:
		ADD(errors, store_pin(ss, &k, 1, true, &err) && err.code != DS_TEMP);
		g = get_n(ss, n, size_of(n), 0);
		ADD(wrong, g == GET_WRONG);
		store_pin(ss, &k, 1, false, &err);
		break;
	case 7: case 8:
		read_ref(ss, n);
		break;
	case 9:
		ADD(errors, store_stat(ss, &st, &err) != 0 || st.bytes > CAPACITY || st.capacity != CAPACITY);
		ADD(stats, 1);
		break;
	default:
		g = get_n(ss, n, size_of(n), 0);
		ADD(hits, g == GET_RIGHT);
		ADD(wrong, g == GET_WRONG);
		ADD(errors, g == GET_ERROR);
	}
}

struct worker { struct store *s; uint64_t seed, ops; };

static void *work(void *ctx)
{
	struct worker *w = ctx;
	struct store_session *ss = session_of(w->s);

	for (uint64_t i = 0; i < w->ops; i++)
		one_op(ss, w->seed * 1000003 + i);
	store_end(ss);
	return NULL;
}

static void process(const char *path, int which, uint64_t ops)
{
	struct store_options o = { .capacity = CAPACITY, .segment = 256 << 10 };
	struct store *s = store_at(path, &o);
	pthread_t t[THREADS];
	struct worker w[THREADS];

	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ s, (uint64_t)(which * THREADS + i), ops };
		pthread_create(&t[i], NULL, work, &w[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	store_close(s);
	exit(0); /* so that a sanitizer says what it found */
}

static uint64_t bytes_of(const char *path)
{
	char names[512][64], file[700];
	uint64_t sum = 0;
	struct stat st;

	for (int i = store_files(path, ".seg", names, 512); i-- > 0;) {
		snprintf(file, sizeof file, "%s/%.63s", path, names[i]);
		if (!stat(file, &st))
			sum += (uint64_t)st.st_size;
	}
	return sum;
}

static void say(void *ctx, const char *line)
{
	(void)ctx;
	tap_diag("%s", line);
}

static void mixed(void)
{
	const char *path = store_path("mixed");
	uint64_t ops = tap_slow() ? 600 : 3000, most = 0, b;
	struct dir_report rep;
	struct ds_err err;
	int left = 2, status, bad = 0;
	pid_t pid[2];

	memset(shared, 0, sizeof *shared);
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (!pid[i])
			process(path, i, ops);
	}
	while (left) {
		b = bytes_of(path);
		most = b > most ? b : most;
		if (waitpid(-1, &status, WNOHANG) > 0) {
			left--;
			bad += status != 0;
		}
		usleep(2000);
	}
	tap_is_int(bad, 0, "two processes of four threads each end well");
	tap_is_int((long long)shared->wrong, 0, "nothing is wrong");
	tap_is_int((long long)shared->errors, 0, "nothing fails");
	tap_ok(shared->hits > ops && shared->puts > ops / 2, "items are stored, and got");
	tap_ok(most <= CAPACITY && most > CAPACITY / 2, "the files of both are within the capacity");
	tap_diag("%d puts, %d hits, %d refs, %d deleted; %d of %d bytes at most", (int)shared->puts, (int)shared->hits,
		(int)shared->refs, (int)shared->deleted, (int)most, CAPACITY);
	tap_ok(!dir_verify(path, say, NULL, &rep, &err) && !rep.torn_bytes && !rep.bad_indices, "verify finds nothing");
	store_rm(path);
}

/* The same by two stores in one process, where a sanitizer sees both. */
static void mixed_here(void)
{
	const char *path = store_path("mixedhere");
	struct store_options o = { .capacity = CAPACITY, .segment = 256 << 10 };
	struct store *s[2] = { store_at(path, &o), store_at(path, &o) };
	uint64_t ops = tap_slow() ? 500 : 2500;
	struct worker w[2 * THREADS];
	pthread_t t[2 * THREADS];
	struct dir_report rep;
	struct ds_err err;

	memset(shared, 0, sizeof *shared);
	for (int i = 0; i < 2 * THREADS; i++) {
		w[i] = (struct worker){ s[i % 2], (uint64_t)(100 + i), ops };
		pthread_create(&t[i], NULL, work, &w[i]);
	}
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 2; i++) {
		struct store_session *ss = session_of(s[i]);

		shared->evicted += stat_of(ss).evicted;
		store_end(ss);
		store_close(s[i]);
	}
	tap_diag("%d puts, %d of them synced, %d hits, %d refs, %d deleted, %d stats, %d evicted", (int)shared->puts,
		(int)shared->synced, (int)shared->hits, (int)shared->refs, (int)shared->deleted, (int)shared->stats,
		(int)shared->evicted);
	tap_ok(!shared->wrong && !shared->errors, "two stores, eight threads, one process: nothing is wrong or fails");
	tap_ok(shared->hits > ops / 2 && shared->synced && shared->deleted && shared->refs && shared->stats &&
		shared->evicted, "and everything was done");
	tap_ok(bytes_of(path) <= CAPACITY, "within the capacity");
	tap_ok(!dir_verify(path, say, NULL, &rep, &err) && !rep.torn_bytes && !rep.bad_indices, "verify finds nothing");
	store_rm(path);
}

/* ---- what one does, the other sees ---- */

static bool soon(struct store_session *ss, uint64_t n, bool there, int ms)
{
	for (int i = 0; i < ms; i += 10) {
		if (has_n(ss, n) == there)
			return true;
		usleep(10000);
	}
	return false;
}

static int open_files(const char *what)
{
	char name[300], to[600];
	int n = 0;

	for (int i = 0; i < 256; i++) {
		ssize_t got;

		snprintf(name, sizeof name, "/proc/self/fd/%d", i);
		got = readlink(name, to, sizeof to - 1);
		if (got > 0) {
			to[got] = 0;
			n += strstr(to, what) && strstr(to, "deleted");
		}
	}
	return n;
}

static void sight(void)
{
	const char *path = store_path("sight");
	struct store_options o = { .capacity = 4 << 20, .segment = 256 << 10 };
	struct store *a = store_at(path, &o), *b = store_at(path, &o);
	struct store_session *sa = session_of(a), *sb = session_of(b);
	struct store_key k = key_of(1);
	enum store_put_result r;
	struct ds_err err;
	bool was;
	int n;

	tap_ok(!put_n(sa, 1, 5000, NULL, &r, &err) && soon(sb, 1, true, 2000) && get_n(sb, 1, 5000, 0) == GET_RIGHT,
		"what one puts the other has");
	tap_ok(!put_n(sb, 1, 5000, NULL, &r, &err) && r == STORE_ALREADY, "and does not store again");
	tap_ok(!store_del(sb, &k, &was, &err) && was && get_n(sa, 1, 5000, 0) == GET_MISS, "what it deletes is gone");
	tap_ok(!put_n(sa, 2, 5000, &(struct put_how){ .replace = true, .version = 1 }, &r, &err) && soon(sb, 2, true,
		2000) &&
		!put_n(sb, 2, 5000, &(struct put_how){ .replace = true, .version = 2 }, &r, &err) &&
		get_n(sb, 2, 5000, 2) == GET_RIGHT, "what one replaces is the other's");
	for (int i = 0; i < 300 && get_n(sa, 2, 5000, 2) != GET_RIGHT; i++) {
		has_n(sa, 99999); /* asks for what is not there */
		usleep(10000);
	}
	tap_ok(get_n(sa, 2, 5000, 2) == GET_RIGHT, "and is seen by who wrote the first");
	/* pinned by one, evicted by the other */
	for (uint64_t i = 10; i < 60; i++)
		put_n(sa, i, 20000, NULL, &r, &err);
	tap_ok(soon(sb, 12, true, 2000), "a segment of one is read by the other");
	k = key_of(12);
	tap_ok(!store_pin(sb, &k, 1, true, &err), "which pins an item of it");
	for (uint64_t i = 100; i < 600; i++)
		put_n(sa, i, 20000, NULL, &r, &err);
	tap_ok(get_n(sb, 12, 20000, 0) == GET_RIGHT, "what is pinned stays");
	tap_ok(get_n(sb, 40, 20000, 0) == GET_MISS, "what is not does not");
	store_pin(sb, &k, 1, false, &err);
	for (uint64_t i = 600; i < 1100; i++)
		put_n(sa, i, 20000, NULL, &r, &err);
	for (int i = 0; (n = open_files(path)) > 0 && i < 80; i++)
		usleep(100000);
	tap_is_int(n, 0, "files that are removed are not held by who is idle");
	store_end(sa);
	store_end(sb);
	store_close(a);
	store_close(b);
	store_rm(path);
}

/* ---- one key, many threads ---- */

struct same { struct store *s; int stored, already; };

static void *put_same(void *ctx)
{
	struct same *w = ctx;
	struct store_session *ss = session_of(w->s);
	enum store_put_result r;
	struct ds_err err;

	for (uint64_t n = 0; n < 40; n++) {
		if (put_n(ss, n, 30000, &(struct put_how){ .sync = n % 8 == 0 }, &r, &err))
			continue;
		__atomic_fetch_add(r == STORE_STORED ? &w->stored : &w->already, 1, __ATOMIC_RELAXED);
	}
	store_end(ss);
	return NULL;
}

static void together(void)
{
	const char *path = store_path("together");
	struct store_options o = { 0 };
	struct same w = { store_at(path, &o), 0, 0 };
	pthread_t t[8];

	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, put_same, &w);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	tap_ok(w.stored == 40 && w.already == 280, "what eight threads put at once is stored once");
	store_close(w.s);
	store_rm(path);
}

int main(void)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	mixed();
	mixed_here();
	sight();
	together();
	return tap_done();
}
