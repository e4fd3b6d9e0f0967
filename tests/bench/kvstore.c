/*
 * KV blocks of DeepSeek-V3 (64 tokens, 61 layers, 576 elements of BF16: 4,497,408 bytes) from a store and into one,
 * beside a bare loop over the same bytes and beside redis-server: GB/s by the clock, GB a second of CPU of all
 * processes that took part, and the medians of the ratios within a round.
 */
#include <pthread.h>
#include <sys/sendfile.h>

#include "base/random.h"
#include "beside.h"
#include "store/store.h"

enum { BLOCK = 64 * 61 * 576 * 2, BLOCKS = 96, BATCH = 16, PER_FILE = 14, ROUNDS = 7, CLIENTS_MOST = 4 };
#define SEGMENT ((uint64_t)64 << 20)

struct client {
	size_t first, n;    /* its part of the blocks */
	uint8_t *p;         /* [BLOCK] */
	int fd;
	struct store_session *ss;
	pthread_t thread;
	const struct way *way;
};

enum peer { NO_PEER, OURS, OURS_PUT, REDIS, SENDFILE, PEERS };
static pid_t peers[PEERS];
static uint8_t *content; /* [BLOCK] of every block, but for its number in front */
static struct store *stores[3];
enum { IN_PROCESS, BY_FD, BY_BYTES };
static struct store *put_store;

struct way {
	const char *name;
	bool (*open)(struct client *c);  /* false: this way is not there */
	void (*pass)(struct client *c);
	void (*close)(struct client *c); /* may be NULL, as what follows */
	bool (*before)(void);            /* each round; not in the time */
	void (*after)(void);
	enum peer peer;
	int arg;
	struct { int way; double goal; } than[2]; /* way 0: none */
};

static void check_block(const struct client *c, size_t i)
{
	uint64_t number;

	memcpy(&number, c->p, sizeof(number));
	if (number != i || c->p[BLOCK - 1] != content[BLOCK - 1])
		die("%s: block %zu is wrong", c->way->name, i);
}

static void number_block(const struct client *c, size_t i)
{
	uint64_t number = i;

	memcpy(c->p, &number, sizeof(number));
}

static struct store_key key_of(size_t i)
{
	struct store_key k;
	uint64_t v[2] = { random_bits(1, i), random_bits(2, i) };

	memcpy(k.b, v, sizeof(k.b));
	return k;
}

/* ---- bare loops ---- */

static const char *bare_path(char path[500], size_t i)
{
	snprintf(path, 500, "%s/bare/%zu", scratch, i / PER_FILE);
	return path;
}

static void make_bare(void)
{
	mkdir(in_scratch("bare"), 0700);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		char path[500];
		int fd = open(bare_path(path, i), O_WRONLY | O_CREAT, 0600);

		memcpy(content, &i, sizeof(i));
		if (fd < 0 || pwrite(fd, content, BLOCK, (off_t)(i % PER_FILE * BLOCK)) != BLOCK)
			die("cannot write '%s': %s", path, strerror(errno));
		close(fd);
	}
}

static bool open_nothing(struct client *c)
{
	(void)c;
	return true;
}

static void pass_pread(struct client *c)
{
	char path[500];

	for (size_t i = c->first; i < c->first + c->n; i++) {
		int fd = open(bare_path(path, i), O_RDONLY);

		if (pread(fd, c->p, BLOCK, (off_t)(i % PER_FILE * BLOCK)) != BLOCK)
			die("pread: %s", strerror(errno));
		close(fd);
		check_block(c, i);
	}
}

/* Every put begins with memory that has just been free: what has been free for long, a virtual machine may have to ask
 * its host for, at several times the cost of the write. */
static bool before_set(void)
{
	int fd = open(in_scratch("memory"), O_RDWR | O_CREAT | O_TRUNC, 0600);

	for (int i = 0; i < BLOCKS; i++)
		if (write(fd, content, BLOCK) != BLOCK)
			die("write: %s", strerror(errno));
	close(fd);
	unlink(in_scratch("memory"));
	return true;
}

static bool before_write(void)
{
	mkdir(in_scratch("written"), 0700);
	return before_set();
}

static void after_put(void)
{
	remove_tree(in_scratch("written"));
}

static void pass_write(struct client *c)
{
	int fd = -1;

	for (size_t i = 0; i < c->n; i++) {
		if (i % PER_FILE == 0) {
			close(fd);
			fd = open(in_scratch("written/%zu-%zu", c->first, i), O_WRONLY | O_CREAT, 0600);
		}
		number_block(c, c->first + i);
		if (write(fd, c->p, BLOCK) != BLOCK)
			die("write: %s", strerror(errno));
	}
	close(fd);
}

/* ---- bare sendfile to a socket ---- */

static void *serve_files(void *arg)
{
	int s = (int)(intptr_t)arg;
	uint32_t ask[2];

	while (recv(s, ask, sizeof(ask), MSG_WAITALL) == sizeof(ask))
		for (size_t i = ask[0]; i < ask[0] + ask[1]; i++) {
			char path[500];
			int fd = open(bare_path(path, i), O_RDONLY);
			off_t at = (off_t)(i % PER_FILE * BLOCK);
			ssize_t got;

			for (size_t left = BLOCK; left; left -= (size_t)got) {
				got = sendfile(s, fd, &at, left);
				if (got <= 0)
					_exit(1);
			}
			close(fd);
		}
	return NULL;
}

static void start_sendfile(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int l = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", in_scratch("sendfile"));
	if (bind(l, (struct sockaddr *)&a, sizeof(a)) || listen(l, 10))
		die("cannot listen: %s", strerror(errno));
	fflush(NULL);
	peers[SENDFILE] = fork();
	if (peers[SENDFILE] == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			pthread_t t;
			int s = accept(l, NULL, NULL);

			if (s < 0 || pthread_create(&t, NULL, serve_files, (void *)(intptr_t)s))
				_exit(1);
			pthread_detach(t);
		}
	}
	close(l);
}

static bool open_sendfile(struct client *c)
{
	c->fd = connect_unix(in_scratch("sendfile"));
	return c->fd >= 0;
}

static void read_all(int fd, void *p, size_t n)
{
	for (ssize_t got; n; n -= (size_t)got) {
		got = read(fd, p, n);
		if (got <= 0)
			die("read: %s", got ? strerror(errno) : "the server has gone");
		p = (uint8_t *)p + got;
	}
}

static void pass_sendfile(struct client *c)
{
	for (size_t i = 0; i < c->n; i++) {
		uint32_t ask[2] = { (uint32_t)(c->first + i), BATCH < c->n - i ? BATCH : (uint32_t)(c->n - i) };

		if (i % BATCH == 0 && write(c->fd, ask, sizeof(ask)) != sizeof(ask))
			die("write: %s", strerror(errno));
		read_all(c->fd, c->p, BLOCK);
		check_block(c, c->first + i);
	}
}

static void close_fd(struct client *c)
{
	close(c->fd);
}

/* ---- Redis ---- */

static void start_redis(void)
{
	const char *argv[] = { "redis-server", "--port", "0", "--unixsocket", in_scratch("redis"), "--save", "",
		"--appendonly", "no", NULL };

	peers[REDIS] = spawn(argv);
}

static bool open_redis(struct client *c)
{
	if (waitpid(peers[REDIS], NULL, WNOHANG))
		return false; /* there is none */
	c->fd = connect_unix(in_scratch("redis"));
	return c->fd >= 0;
}

static void redis_line(int fd, char *line, size_t cap)
{
	size_t n = 0;

	do {
		read_all(fd, line + n, 1);
	} while (line[n++] != '\n' && n < cap - 1);
	line[n] = 0;
}

static void redis_set(struct client *c, size_t i)
{
	struct store_key k = key_of(i);
	char head[100], line[100];
	int n = snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$16\r\n");
	struct iovec iov[3] = { { head, 0 }, { c->p, BLOCK }, { (char *)(uintptr_t)"\r\n", 2 } };

	memcpy(head + n, k.b, 16);
	n += 16;
	n += snprintf(head + n, sizeof(head) - (size_t)n, "\r\n$%d\r\n", BLOCK);
	iov[0].iov_len = (size_t)n;
	number_block(c, i);
	for (int v = 0; v < 3;) {
		ssize_t put = writev(c->fd, iov + v, 3 - v);

		if (put < 0)
			die("redis: %s", strerror(errno));
		for (; v < 3 && (size_t)put >= iov[v].iov_len; v++)
			put -= (ssize_t)iov[v].iov_len;
		if (v < 3) {
			iov[v].iov_base = (char *)iov[v].iov_base + put;
			iov[v].iov_len -= (size_t)put;
		}
	}
	redis_line(c->fd, line, sizeof(line));
	if (strcmp(line, "+OK\r\n") != 0)
		die("redis: %s", line);
}

static void pass_redis_get(struct client *c)
{
	for (size_t i = c->first; i < c->first + c->n; i++) {
		char head[100], line[100], end[2];
		struct store_key k = key_of(i);
		int n = snprintf(head, sizeof(head), "*2\r\n$3\r\nGET\r\n$16\r\n");

		memcpy(head + n, k.b, 16);
		memcpy(head + n + 16, "\r\n", 2);
		if (write(c->fd, head, (size_t)n + 18) != n + 18)
			die("redis: %s", strerror(errno));
		redis_line(c->fd, line, sizeof(line));
		if (line[0] != '$' || atoi(line + 1) != BLOCK)
			die("redis: %s", line);
		read_all(c->fd, c->p, BLOCK);
		read_all(c->fd, end, 2);
		check_block(c, i);
	}
}

static void pass_redis_set(struct client *c)
{
	for (size_t i = c->first; i < c->first + c->n; i++)
		redis_set(c, i);
}

/* ---- ours ---- */

static const struct store_options options = { .segment = SEGMENT };

static struct store *open_store(const char *kind, const char *path, const char *how)
{
	struct store *s;
	struct ds_err err;
	char addr[500];

	snprintf(addr, sizeof(addr), "%s%s%s", kind, path, how);
	if (store_open(&s, addr, &options, &err))
		die("%s", err.text);
	return s;
}

static bool begin_session(struct client *c, struct store *s)
{
	struct store_key k = key_of(0);
	struct ds_err err;
	size_t prefix;

	if (!s)
		return false;
	if (store_begin(&c->ss, s, &err))
		die("%s", err.text);
	if (store_has(c->ss, &k, 1, NULL, &prefix, &err)) /* connects */
		die("%s", err.text);
	return true;
}

static bool open_get(struct client *c)
{
	return begin_session(c, stores[c->way->arg]);
}

static void close_session(struct client *c)
{
	store_end(c->ss);
}

struct getting { struct client *c; size_t first; };

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	const struct getting *g = ctx;

	(void)i;
	if (item->size != BLOCK)
		die("an item of another size");
	return g->c->p;
}

static bool done(void *ctx, size_t i)
{
	const struct getting *g = ctx;

	check_block(g->c, g->first + i);
	return true;
}

static void pass_get(struct client *c)
{
	for (size_t i = 0; i < c->n; i += BATCH) {
		size_t n = c->n - i < BATCH ? c->n - i : BATCH, got;
		struct getting g = { c, c->first + i };
		const struct store_sink sink = { &g, place, done };
		struct store_key keys[BATCH];
		struct ds_err err;

		for (size_t k = 0; k < n; k++)
			keys[k] = key_of(g.first + k);
		if (store_get(c->ss, keys, n, &sink, &got, &err))
			die("%s: %s", c->way->name, err.text);
		if (got != n)
			die("%s: %zu of %zu blocks", c->way->name, got, n);
	}
}

static void pass_put(struct client *c)
{
	const struct iovec iov = { c->p, BLOCK };

	for (size_t i = c->first; i < c->first + c->n; i++) {
		const struct store_put put = { .key = key_of(i), .iov = &iov, .iovs = 1, .element = 2 };
		enum store_put_result how;
		struct ds_err err;

		number_block(c, i);
		if (store_put(c->ss, &put, &how, &err))
			die("%s: %s", c->way->name, err.text);
		if (how != STORE_STORED)
			die("%s: block %zu was not stored", c->way->name, i);
	}
}

static pid_t start_ours(const char *socket, const char *dir)
{
	const char *build = getenv("DS_BUILD");
	char program[500], listen[500];
	const char *argv[] = { program, "--listen", listen, "--dir", dir, "--segment", "64M", NULL };

	snprintf(program, sizeof(program), "%s/bin/ds-kvstore", build ? build : "build");
	snprintf(listen, sizeof(listen), "unix:%s", socket);
	return access(program, X_OK) ? 0 : spawn(argv);
}

static bool before_put_dir(void)
{
	put_store = open_store("dir:", in_scratch("written"), "");
	return before_set();
}

static bool before_put_unix(void)
{
	int fd;

	peers[OURS_PUT] = start_ours(in_scratch("put"), in_scratch("written"));
	if (!peers[OURS_PUT])
		return false;
	fd = connect_unix(in_scratch("put"));
	if (fd < 0)
		die("ds-kvstore does not listen");
	close(fd);
	put_store = open_store("unix:", in_scratch("put"), "");
	return before_set();
}

static void after_put_store(void)
{
	store_close(put_store);
	put_store = NULL;
	stop(&peers[OURS_PUT]);
	after_put();
}

static bool open_put(struct client *c)
{
	return begin_session(c, put_store);
}

/* Both servers have all blocks. */
static void fill(void)
{
	struct client c = { .n = BLOCKS, .p = content, .way = &(struct way){ .name = "put" } };
	int fd;

	stores[IN_PROCESS] = open_store("dir:", in_scratch("store"), "");
	begin_session(&c, stores[IN_PROCESS]);
	pass_put(&c);
	close_session(&c);
	peers[OURS] = start_ours(in_scratch("ours"), in_scratch("store"));
	if (peers[OURS]) {
		fd = connect_unix(in_scratch("ours"));
		if (fd < 0)
			die("ds-kvstore does not listen");
		close(fd);
		stores[BY_FD] = open_store("unix:", in_scratch("ours"), "");
		stores[BY_BYTES] = open_store("unix:", in_scratch("ours"), "?bytes");
	}
	if (open_redis(&c)) {
		pass_redis_set(&c);
		close_fd(&c);
	}
}

/* ---- rounds ---- */

enum { WAY_PREAD = 1, WAY_DIR, WAY_FD, WAY_REDIS, WAY_SENDFILE, WAY_BYTES, WAY_WRITE, WAY_PUT, WAY_PUT_UNIX, WAY_SET,
	WAYS };

static const struct way ways[WAYS] = {
	[WAY_PREAD] = { "get: bare open, pread into one buffer", open_nothing, pass_pread, .peer = NO_PEER },
	[WAY_DIR] = { "get: dir:", open_get, pass_get, close_session, .arg = IN_PROCESS, .than = { { WAY_PREAD, 0 } } },
	[WAY_FD] = { "get: unix:, by descriptor", open_get, pass_get, close_session, .peer = OURS, .arg = BY_FD,
		.than = { { WAY_PREAD, 0.8 }, { WAY_REDIS, 3 } } },
	[WAY_REDIS] = { "get: redis-server, unix socket", open_redis, pass_redis_get, close_fd, .peer = REDIS },
	[WAY_SENDFILE] = { "get: bare sendfile, unix socket, read", open_sendfile, pass_sendfile, close_fd,
		.peer = SENDFILE },
	[WAY_BYTES] = { "get: unix:, as bytes", open_get, pass_get, close_session, .peer = OURS, .arg = BY_BYTES,
		.than = { { WAY_SENDFILE, 0.8 }, { WAY_REDIS, 1 } } },
	[WAY_WRITE] = { "put: bare create, write", open_nothing, pass_write, NULL, before_write, after_put,
		.peer = NO_PEER },
	[WAY_PUT] = { "put: dir:", open_put, pass_put, close_session, before_put_dir, after_put_store,
		.than = { { WAY_WRITE, 0.7 } } },
	[WAY_PUT_UNIX] = { "put: unix:", open_put, pass_put, close_session, before_put_unix, after_put_store,
		.peer = OURS_PUT, .than = { { WAY_WRITE, 0 }, { WAY_SET, 0 } } },
	[WAY_SET] = { "put: redis-server, unix socket", open_redis, pass_redis_set, close_fd, before_set,
		.peer = REDIS },
};

static double wall[WAYS][ROUNDS], cpu[WAYS][ROUNDS];

static void *run_client(void *arg)
{
	struct client *c = arg;

	c->way->pass(c);
	return NULL;
}

/* False: there is no such way here. */
static bool turn(const struct way *w, struct client *clients, size_t n, double *seconds, double *cpus)
{
	bool here = !w->before || w->before();
	double cpu0;
	int64_t start;

	for (size_t i = 0; i < n && here; i++) {
		clients[i].way = w;
		here = w->open(&clients[i]);
	}
	if (!here)
		return false;
	cpu0 = cpu_seconds(0) + (w->peer ? cpu_seconds(peers[w->peer]) : 0);
	start = time_mono_ns();
	for (size_t i = 0; i < n; i++)
		if (pthread_create(&clients[i].thread, NULL, run_client, &clients[i]))
			die("no thread");
	for (size_t i = 0; i < n; i++)
		pthread_join(clients[i].thread, NULL);
	*seconds = 1e-9 * (double)(time_mono_ns() - start);
	*cpus = cpu_seconds(0) + (w->peer ? cpu_seconds(peers[w->peer]) : 0) - cpu0;
	for (size_t i = 0; i < n && w->close; i++)
		w->close(&clients[i]);
	if (w->after)
		w->after();
	return true;
}

static double ratio(double (*of)[ROUNDS], int way, int than)
{
	double v[ROUNDS];

	for (int r = 0; r < ROUNDS; r++)
		v[r] = of[than][r] / of[way][r];
	return median(v, ROUNDS);
}

static double rate(const double *seconds)
{
	double v[ROUNDS];

	memcpy(v, seconds, sizeof(v));
	return 1e-9 * BLOCK * BLOCKS / median(v, ROUNDS);
}

static void print_ways(const bool *here)
{
	for (int k = 1; k < WAYS; k++) {
		if (!here[k]) {
			printf("%-40s      SKIP: not there\n", ways[k].name);
			continue;
		}
		printf("%-40s %7.2f %7.2f", ways[k].name, rate(wall[k]), rate(cpu[k]));
		for (int i = 0; i < 2; i++) {
			int than = ways[k].than[i].way;

			if (!than || !here[than])
				continue;
			printf("   %5.2f (CPU %5.2f) of %s", ratio(wall, k, than), ratio(cpu, k, than),
				strchr(ways[than].name, ' ') + 1);
			if (ways[k].than[i].goal > 0)
				printf(", goal %.1f", ways[k].than[i].goal);
		}
		putchar('\n');
	}
}

static void compare(size_t n)
{
	struct client clients[CLIENTS_MOST] = { { 0 } };
	bool here[WAYS] = { false };

	for (size_t i = 0; i < n; i++) {
		clients[i] = (struct client){ .first = BLOCKS / n * i, .n = BLOCKS / n, .p = mem_aligned(BLOCK) };
		if (!clients[i].p)
			die("out of memory");
		memcpy(clients[i].p, content, BLOCK);
	}
	for (int r = -1; r < ROUNDS; r++) /* the first touches memory that nobody had before, and is forgotten */
		for (int k = 1; k < WAYS; k++)
			here[k] = turn(&ways[k], clients, n, &wall[k][r < 0 ? 0 : r], &cpu[k][r < 0 ? 0 : r]);
	printf("%zu client%s, %d blocks of %d bytes%*s %7s %7s   ratio\n", n, plural(n), BLOCKS, BLOCK, 5, "", "GB/s",
		"GB/CPUs");
	print_ways(here);
	for (size_t i = 0; i < n; i++)
		free(clients[i].p);
}

int main(void)
{
	if (!scratch_begin((uint64_t)BLOCK * BLOCKS * 4)) {
		printf("SKIP: no room for %d MB in '%s'\n", BLOCK / 1000000 * BLOCKS * 4, scratch);
		return 0;
	}
	content = mem_aligned(BLOCK);
	if (!content)
		die("out of memory");
	for (uint64_t i = 0; i < BLOCK / 8; i++)
		((uint64_t *)(void *)content)[i] = random_bits(0, i);
	make_bare();
	start_sendfile();
	start_redis();
	fill();
	compare(1);
	compare(CLIENTS_MOST);
	for (size_t i = 0; i < ARRAY_LEN(stores); i++)
		store_close(stores[i]);
	for (int i = 0; i < PEERS; i++)
		stop(&peers[i]);
	free(content);
	return 0;
}
