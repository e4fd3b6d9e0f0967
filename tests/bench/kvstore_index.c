/*
 * A store with ten million items: how long it takes to ask for a thousand keys, in this process and through a socket,
 * what the index takes of memory, how long the store takes to begin.  Goals: 200 us, 64 bytes an item, 2 s.
 */
#include "base/random.h"
#include "beside.h"
#include "store/store.h"

enum { KEYS = 1000, CALLS = 2000, VALUE = 64, FRAME_MOST = 400 /* bytes of an item on the disk */ };

static size_t items = 10000000;

static void *need(void *p)
{
	if (!p)
		die("out of memory");
	return p;
}

static struct store_key key_of(size_t i)
{
	struct store_key k;
	uint64_t v[2] = { random_bits(1, i), random_bits(2, i) };

	memcpy(k.b, v, sizeof(k.b));
	return k;
}

static struct store *open_store(const char *kind, const char *path)
{
	const struct store_options o = { 0 };
	struct ds_err err;
	struct store *s;
	char addr[500];

	snprintf(addr, sizeof(addr), "%s%s", kind, path);
	if (store_open(&s, addr, &o, &err))
		die("%s", err.text);
	return s;
}

static struct store_session *begin(struct store *s)
{
	struct store_session *ss;
	struct ds_err err;

	if (store_begin(&ss, s, &err))
		die("%s", err.text);
	return ss;
}

static size_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	size_t pages[2] = { 0 };

	if (!f || fscanf(f, "%zu %zu", &pages[0], &pages[1]) != 2)
		die("no /proc/self/statm");
	fclose(f);
	return pages[1] * (size_t)sysconf(_SC_PAGESIZE);
}

static void make_items(void)
{
	struct store *s = open_store("dir:", in_scratch("store"));
	struct store_session *ss = begin(s);
	uint8_t value[VALUE] = { 0 };
	const struct iovec iov = { value, VALUE };
	int64_t start = time_mono_ns();
	double seconds, cpu = cpu_seconds(0);

	for (size_t i = 0; i < items; i++) {
		const struct store_put put = { .key = key_of(i), .iov = &iov, .iovs = 1 };
		enum store_put_result how;
		struct ds_err err;

		memcpy(value, &i, sizeof(i));
		if (store_put(ss, &put, &how, &err))
			die("%s", err.text);
	}
	store_end(ss);
	store_close(s);
	seconds = 1e-9 * (double)(time_mono_ns() - start);
	printf("%-52s %10.0f items/s, %.1f us of CPU for each\n", "put of 64-byte values, one session",
		(double)items / seconds, 1e6 * (cpu_seconds(0) - cpu) / (double)items);
}

/* Each call asks for other keys, all of which are there.  us [CALLS] */
static void ask(struct store_session *ss, double *us)
{
	struct store_key *keys = need(mem_array(KEYS, sizeof(*keys)));
	uint8_t *here = need(malloc(KEYS));

	for (size_t c = 0; c < CALLS; c++) {
		size_t prefix = 0;
		struct ds_err err;
		int64_t start;

		for (size_t k = 0; k < KEYS; k++)
			keys[k] = key_of(random_bits(3, c * KEYS + k) % items);
		start = time_mono_ns();
		if (store_has(ss, keys, KEYS, here, &prefix, &err))
			die("%s", err.text);
		us[c] = 1e-3 * (double)(time_mono_ns() - start);
		if (prefix != KEYS)
			die("only %zu of %d keys are there", prefix, KEYS);
	}
	free(keys);
	free(here);
}

static void report_has(const char *what, struct store_session *ss, double goal)
{
	double *us = need(mem_array(CALLS, sizeof(*us))), mid;

	ask(ss, us);
	mid = median(us, CALLS);
	printf("%-52s %10.1f us, 99 %% below %.1f, goal %.0f\n", what, mid, us[CALLS * 99 / 100], goal);
	free(us);
}

/* Every file of the store leaves the memory. */
static int forget(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	int fd = type == FTW_F ? open(path, O_RDONLY) : -1;

	(void)st, (void)ftw;
	if (fd >= 0) {
		fdatasync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
	return 0;
}

static void report_open(const char *what, bool cold)
{
	double seconds[5], cpu[5];

	for (int i = 0; i < 5; i++) {
		struct store_key k = key_of(items / 2);
		size_t prefix = 0;
		struct ds_err err;
		struct store_session *ss;
		struct store *s;
		int64_t start;

		if (cold)
			nftw(in_scratch("store"), forget, 16, FTW_PHYS);
		start = time_mono_ns();
		cpu[i] = cpu_seconds(0);
		s = open_store("dir:", in_scratch("store"));
		ss = begin(s);
		if (store_has(ss, &k, 1, NULL, &prefix, &err) || !prefix)
			die("the key is not there");
		seconds[i] = 1e-9 * (double)(time_mono_ns() - start);
		cpu[i] = cpu_seconds(0) - cpu[i];
		store_end(ss);
		store_close(s);
	}
	printf("%-52s %10.2f s, %.2f s of CPU, goal 2\n", what, median(seconds, 5), median(cpu, 5));
}

static void in_process(void)
{
	size_t before = resident(), after;
	struct store *s = open_store("dir:", in_scratch("store"));
	struct store_session *ss = begin(s);
	struct store_stat st;
	struct ds_err err;

	after = resident();
	if (store_stat(ss, &st, &err))
		die("%s", err.text);
	if (st.items != items)
		die("%llu items", (unsigned long long)st.items);
	printf("%-52s %10.1f bytes an item, as it says itself, goal 64\n", "index",
		(double)st.index_bytes / (double)items);
	printf("%-52s %10.1f bytes an item\n", "memory of the process that beginning took",
		(double)(after - before) / (double)items);
	printf("%-52s %10.1f bytes an item in %llu files\n", "on the disk", (double)st.bytes / (double)items,
		(unsigned long long)st.segments);
	report_has("has of 1,000 keys, this process", ss, 200);
	store_end(ss);
	store_close(s);
}

static void by_socket(void)
{
	const char *build = getenv("DS_BUILD");
	char program[500], listen[500];
	const char *argv[] = { program, "--listen", listen, "--dir", in_scratch("store"), NULL };
	struct store_session *ss;
	struct store *s;
	int64_t start = time_mono_ns();
	pid_t pid;

	snprintf(program, sizeof(program), "%s/bin/ds-kvstore", build ? build : "build");
	if (access(program, X_OK)) {
		puts("SKIP: no ds-kvstore");
		return;
	}
	snprintf(listen, sizeof(listen), "unix:%s", in_scratch("sock"));
	pid = spawn(argv);
	close(connect_unix(in_scratch("sock")));
	printf("%-52s %10.2f s, goal 2\n", "ds-kvstore, from its start to its socket",
		1e-9 * (double)(time_mono_ns() - start));
	s = open_store("unix:", in_scratch("sock"));
	ss = begin(s);
	report_has("has of 1,000 keys, unix socket", ss, 200);
	store_end(ss);
	store_close(s);
	stop(&pid);
}

/* argv: a model's directory, not used; how many items. */
int main(int argc, char **argv)
{
	if (argc > 2)
		items = strtoull(argv[2], NULL, 10);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!scratch_begin(items * FRAME_MOST)) {
		printf("SKIP: no room for %zu MB in '%s'\n", items * FRAME_MOST / 1000000, scratch);
		return 0;
	}
	printf("%zu items\n", items);
	make_items();
	in_process();
	report_open("beginning, files in memory", false);
	report_open("beginning, files on the disk only", true);
	by_socket();
	return 0;
}
