/* Files that are damaged: every get is right or a miss, and no more is lost than what was hit. */
#include <sys/mman.h>

#include "base/time.h"
#include "frame/internal.h"
#include "tests/unit/stores.h"

enum { ITEMS = 240, FILES = 64, ROUNDS = 100, FLIPS = 10 };

static size_t size_of(uint64_t n)
{
	return n % 3 ? random_bits(3, n) % 2000 : random_bits(3, n) % 9000;
}

/* ---- a store's files in memory ---- */

struct image { char name[64]; uint8_t *p; size_t n; };
static struct image images[FILES];
static size_t image_count;

static void take_images(const char *path)
{
	char names[FILES][64], file[700];
	const char *kinds[] = { ".seg", ".idx" };

	for (size_t i = 0; i < image_count; i++)
		free(images[i].p);
	image_count = 0;
	for (int k = 0; k < 2; k++)
		for (int i = store_files(path, kinds[k], names, FILES); i-- > 0 && image_count < FILES;) {
			struct image *m = &images[image_count++];
			struct stat st;
			FILE *f;

			snprintf(m->name, sizeof m->name, "%s", names[i]);
			snprintf(file, sizeof file, "%s/%.63s", path, m->name);
			f = fopen(file, "rb");
			if (!f || fstat(fileno(f), &st))
				tap_bail("cannot read %s", file);
			m->n = (size_t)st.st_size;
			m->p = malloc(m->n);
			if (fread(m->p, 1, m->n, f) != m->n)
				tap_bail("cannot read %s", file);
			fclose(f);
		}
}

static void put_images(const char *path)
{
	char names[FILES][64], file[700];
	const char *kinds[] = { ".seg", ".idx" };

	for (int k = 0; k < 2; k++)
		for (int i = store_files(path, kinds[k], names, FILES); i-- > 0;) {
			snprintf(file, sizeof file, "%s/%.63s", path, names[i]);
			unlink(file);
		}
	for (size_t i = 0; i < image_count; i++) {
		FILE *f;

		snprintf(file, sizeof file, "%s/%.63s", path, images[i].name);
		f = fopen(file, "wb");
		if (!f || fwrite(images[i].p, 1, images[i].n, f) != images[i].n)
			tap_bail("cannot write %s", file);
		fclose(f);
	}
}

static void flip(uint64_t which)
{
	size_t total = 0;
	uint64_t bit;

	for (size_t i = 0; i < image_count; i++)
		total += images[i].n;
	if (!total)
		return;
	bit = random_bits(11, which) % (total * 8);
	for (size_t i = 0; i < image_count; i++) {
		if (bit / 8 < images[i].n) {
			images[i].p[bit / 8] ^= (uint8_t)(1 << bit % 8);
			return;
		}
		bit -= images[i].n * 8;
	}
}

/* ---- bits that turn over ---- */

static void look_at_all(const char *path, bool read_only, size_t *wrong, size_t *missed, uint64_t *corrupt)
{
	struct store_options o = { .segment = 64 << 10, .read_only = read_only };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);

	*missed = 0;
	for (uint64_t n = 0; n < ITEMS; n++) {
		enum get_result r = get_n(ss, n, size_of(n), 0);

		*wrong += r != GET_RIGHT && r != GET_MISS;
		*missed += r == GET_MISS;
	}
	*corrupt = stat_of(ss).corrupt;
	store_end(ss);
	store_close(s);
}

static void build(const char *path, bool zstd)
{
	struct store_options o = { .segment = 64 << 10, .zstd = zstd };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err;
	size_t bad = 0;

	for (uint64_t n = 0; n < ITEMS; n++)
		bad += put_n(ss, n, size_of(n), &(struct put_how){ .element = 2 }, &r, &err) != 0;
	if (bad)
		tap_bail("cannot build a store: %s", err.text);
	store_end(ss);
	store_close(s);
	take_images(path);
}

static void flips(bool zstd)
{
	const char *path = store_path(zstd ? "flipz" : "flip");
	size_t wrong = 0, most = 0, missed, again, back = 0, sum = 0;
	uint64_t corrupt, counted = 0;

	build(path, zstd);
	for (uint64_t round = 0; round < ROUNDS / 2; round++) {
		for (uint64_t i = 0; i < FLIPS; i++)
			flip(round * FLIPS + i + zstd * 100000);
		put_images(path);
		look_at_all(path, round % 4 == 3, &wrong, &missed, &corrupt);
		counted += corrupt;
		sum += missed;
		if (missed > most)
			most = missed;
		look_at_all(path, false, &wrong, &again, &corrupt);
		back += again < missed;
		for (uint64_t i = 0; i < FLIPS; i++) /* and back */
			flip(round * FLIPS + i + zstd * 100000);
	}
	tap_is_int((long long)wrong, 0, "with bits turned over, every get is right or a miss");
	tap_ok(most && most <= FLIPS, "of %d bits none costs more than an item: %zu at most", FLIPS, most);
	tap_ok(counted > sum / 2, "what is dropped is counted: %zu of %zu", (size_t)counted, sum);
	tap_is_int((long long)back, 0, "what was dropped stays away");
	store_rm(path);
}

/* ---- frames within payloads ---- */

/* An item whose payload is frames that are right but for the mark of their place, in a segment that is damaged before
 * them and whose index is lost. */
static void planted(void)
{
	const char *path = store_path("planted");
	struct store_options o = { .segment = 1 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct store_key evil = key_of(666), carrier = key_of(1);
	enum { COPIES = 100 };
	uint8_t *p = calloc(COPIES, 4096);
	enum store_put_result r;
	struct frame_writer *w;
	struct frame_front front = { 0 };
	struct meta_builder *b = meta_new();
	struct store_item item = { .key = evil, .size = 64 };
	uint8_t body[64] = "not what anyone put";
	struct iovec iov = { body, 64 };
	struct store_put put = { .key = carrier, .iovs = 1 };
	struct dir_report rep;
	struct ds_err err;
	size_t n = 0;
	bool bad;

	store_item_put(b, &item);
	bad = frame_writer_new(&w, -1, "evil", &err);
	for (uint64_t i = 0; i < COPIES && !bad; i++) {
		bad = frame_encode(w, FRAME_STORE, 0, random_bits(1, i), 2 + i % 3, b, &iov, 1, true, &front,
			&err) != 0;
		memcpy(p + n, front.p, front.n);
		memcpy(p + n + front.n, body, 64);
		n += front.n + 64;
	}
	put.iov = &(struct iovec){ p, n };
	bad = bad || store_put(ss, &put, &r, &err) || put_n(ss, 2, 500, NULL, &r, &err) || put_n(ss, 3, 500, NULL, &r,
		&err);
	tap_ok(!bad, "an item full of frames is stored");
	store_end(ss);
	store_close(s);
	take_images(path);
	for (size_t i = 0; i < image_count; i++)
		if (strstr(images[i].name, ".seg")) /* the head of the first item, behind the hello frame */
			images[i].p[frame_front_bytes(images[i].p) + 30] ^= 1;
		else
			images[i].n = 0;
	put_images(path);
	tap_ok(dir_verify(path, NULL, NULL, &rep, &err) == DS_NO && rep.bad_items == 1 && rep.items == 2,
		"verify finds one damaged item: %s", err.text);
	s = store_at(path, &o);
	ss = session_of(s);
	size_t prefix;
	tap_ok(!store_has(ss, &evil, 1, NULL, &prefix, &err) && !prefix, "nothing within a payload passes for an item");
	tap_ok(get_n(ss, 2, 500, 0) == GET_RIGHT && get_n(ss, 3, 500, 0) == GET_RIGHT, "the items behind it are found");
	store_end(ss);
	store_close(s);
	store_rm(path);
	frame_writer_free(w);
	meta_free(b);
	free(p);
}

static void verified(void)
{
	const char *path = store_path("verified");
	struct dir_report rep;
	struct ds_err err;

	build(path, false);
	for (size_t i = 0; i < image_count; i++)
		if (strstr(images[i].name, ".seg")) {
			images[i].p[images[i].n / 2] ^= 1;
			break;
		}
	put_images(path);
	tap_ok(dir_verify(path, NULL, NULL, &rep, &err) == DS_NO && rep.bad_items == 1 && rep.items == ITEMS - 1,
		"verify finds a byte that is wrong: %s", err.text);
	store_rm(path);
}

/* ---- indices that are lost ---- */

static void no_indices(void)
{
	const char *path = store_path("noidx");
	size_t wrong = 0, missed, short_ones = 0;
	uint64_t corrupt;

	build(path, false);
	for (size_t i = 0; i < image_count; i++)
		if (strstr(images[i].name, ".idx"))
			images[i].n = i % 2 ? images[i].n / 2 : 0;
	put_images(path);
	look_at_all(path, true, &wrong, &missed, &corrupt);
	tap_ok(!wrong && !missed, "indices that are cut are not needed");
	look_at_all(path, false, &wrong, &missed, &corrupt);
	tap_ok(!wrong && !missed, "and are made again");
	take_images(path);
	for (size_t i = 0; i < image_count; i++)
		short_ones += images[i].n <= 64;
	tap_is_int((long long)short_ones, 0, "on disk");
	store_rm(path);
}

/* ---- gc ---- */

static void told(void *ctx, const char *line)
{
	++*(int *)ctx;
	tap_diag("%s", line);
}

static bool damage_meta(struct store_session *ss, uint64_t n)
{
	struct store_key k = key_of(n);
	char link[60], name[700] = "";
	struct store_ref ref;
	struct ds_err err;
	bool done;
	int fd;

	if (ss->store->ops->find(ss, &k, &ref, &err))
		return false;
	snprintf(link, sizeof link, "/proc/self/fd/%d", ref.fd);
	fd = readlink(link, name, sizeof name - 1) > 0 ? open(name, O_WRONLY) : -1;
	done = fd >= 0 && pwrite(fd, "\xff\xff\xff\xff", 4, (off_t)ref.offset + 48) == 4;
	if (fd >= 0)
		close(fd);
	ss->store->ops->release(ss, &ref);
	return done;
}

static void gc(void)
{
	const char *path = store_path("gc");
	struct store_options o = { .segment = 64 << 10 };
	struct store *s;
	struct store_session *ss;
	struct dir_report rep;
	struct ds_err err;
	size_t right = 0;
	int lines = 0;
	bool was, bad;

	build(path, false);
	s = store_at(path, &o);
	ss = session_of(s);
	for (uint64_t n = 0; n < ITEMS; n += 2) {
		struct store_key k = key_of(n);

		store_del(ss, &k, &was, &err);
	}
	bad = !damage_meta(ss, 101);
	store_end(ss);
	store_close(s);
	tap_ok(!bad && !dir_gc(path, &o, told, &lines, &rep, &err), "gc goes on where an item is damaged: %s",
		err.text);
	tap_ok(rep.bad_items == 1 && lines == 1, "counts it, and tells");
	s = store_at(path, &o);
	ss = session_of(s);
	for (uint64_t n = 1; n < ITEMS; n += 2)
		right += get_n(ss, n, size_of(n), 0) == GET_RIGHT;
	tap_ok(right == ITEMS / 2 - 1 && !has_n(ss, 101), "all others are there");
	store_end(ss);
	store_close(s);
	tap_ok(!dir_verify(path, NULL, NULL, &rep, &err) && !rep.dead_bytes, "and nothing that is dead or wrong");
	store_rm(path);
}

/* ---- much that is no frame ---- */

/* Item 2 is large and has a damaged head; the others are whole; no index; with `tail` bytes of nothing behind all. */
static bool build_large(const char *path, bool hole, off_t tail, bool *able)
{
	enum { LARGE = 8 << 20, UNIT = 64 };
	struct store_options o = { .segment = 64 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	uint8_t *p = malloc(LARGE), head[4096];
	struct iovec iov = { p, LARGE };
	struct store_key first = key_of(1);
	struct store_put put = { .key = key_of(2), .iov = &iov, .iovs = 1 };
	char names[2][64], file[700];
	enum store_put_result r;
	struct store_ref ref, is;
	struct ds_err err;
	struct stat st;
	bool bad;
	int fd;

	bad = put_n(ss, 1, 500, NULL, &r, &err) ||
		ss->store->ops->find(ss, &first, &ref, &err) ||
		pread(ref.fd, head, sizeof head, (off_t)ref.offset) < UNIT;
	ss->store->ops->release(ss, &ref);
	for (size_t i = 0; i < LARGE; i += UNIT) /* heads of frames, all right but for their place */
		memcpy(p + i, head, UNIT);
	bad = bad || store_put(ss, &put, &r, &err) || put_n(ss, 3, 500, NULL, &r, &err);
	bad = bad || ss->store->ops->find(ss, &put.key, &ref, &err);
	is = ref;
	ss->store->ops->release(ss, &ref);
	store_end(ss);
	store_close(s);
	bad = bad || store_files(path, ".idx", names, 1) != 1;
	snprintf(file, sizeof file, "%s/%.63s", path, names[0]);
	unlink(file);
	memcpy(strstr(file, ".idx"), ".seg", 4);
	fd = open(file, O_RDWR);
	bad = bad || fd < 0 || pwrite(fd, "?", 1, (off_t)is.offset + 30) != 1;
	*able = !hole || !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		(off_t)(is.offset + is.head_bytes), LARGE);
	if (tail && (fstat(fd, &st) || ftruncate(fd, st.st_size - UNIT / 2) || ftruncate(fd, tail)))
		*able = false;
	close(fd);
	free(p);
	return !bad;
}

static void large(const char *what, bool hole, off_t tail)
{
	const char *path = store_path("large");
	struct store_options o = { .segment = 64 << 20 };
	struct store_session *ss;
	struct store *s;
	int64_t began;
	double took;
	bool able;

	if (!build_large(path, hole, tail, &able))
		tap_bail("cannot build a store");
	if (!able) {
		tap_skip("this file system has no holes");
		store_rm(path);
		return;
	}
	began = time_mono_ns();
	s = store_at(path, &o);
	took = (double)(time_mono_ns() - began) * 1e-9;
	ss = session_of(s);
	tap_ok(get_n(ss, 1, 500, 0) == GET_RIGHT && get_n(ss, 3, 500, 0) == GET_RIGHT && !has_n(ss, 2),
		"%s: what lies before and behind is there", what);
	tap_ok(took < 10, "%s: the search is short: %.3f s", what, took);
	store_end(ss);
	store_close(s);
	store_rm(path);
}

int main(void)
{
	large("a damaged item full of heads of frames", false, 0);
	large("a hole", true, 0);
	large("256 GB that were never written", true, (off_t)256 << 30);
	flips(false);
	flips(true);
	verified();
	planted();
	no_indices();
	gc();
	return tap_done();
}
