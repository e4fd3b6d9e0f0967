/* The Redis backends against servers that answer what no Redis would. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/time.h"
#include "tests/unit/redis_use.h"

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

static const struct { const char *what, *slots, *reply; size_t repeat; bool closes; } kinds[] = {
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
	{ "a line without an end", NULL, "+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	100000, false },
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
	{ "a map to nowhere", "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n", "$-1\r\n", 1,
	false },
	{ "MOVED without end", MAP_SELF, "-MOVED 1 127.0.0.1:%d\r\n", 1, false },
	{ "ASK without end", MAP_SELF, "-ASK 1 127.0.0.1:%d\r\n", 1, false },
	{ "MOVED to nowhere", MAP_SELF, "-MOVED 1 127.0.0.1:1\r\n", 1, false },
	{ "MOVED to nonsense", MAP_SELF, "-MOVED 99999 x\r\n", 1, false },
	{ "TRYAGAIN without end", MAP_SELF, "-TRYAGAIN\r\n", 1, false },
	{ "CLUSTERDOWN", MAP_SELF, "-CLUSTERDOWN\r\n", 1, false },
};

/* One call of each sort in turn; false: it got what cannot be, or another error than it may be. */
static bool call(struct use *u, int sort)
{
	struct store_key keys[3] = { key_of(1), key_of(2), key_of(3) };
	enum store_put_result how;
	struct store_stat st;
	uint8_t here[3];
	struct got g = { 0 };
	size_t prefix;
	bool was;
	int rc;

	switch (sort % 5) {
	case 0: rc = get(u, 0, 3, SIZE_MAX, &g); break;
	case 1: rc = store_has(u->ss, keys, 3, here, &prefix, &err); break;
	case 2: rc = put(u, 6, 0, false, &how); break;
	case 3: rc = store_del(u->ss, keys, &was, &err); break;
	default: rc = store_stat(u->ss, &st, &err);
	}
	return !g.items && !g.placed && (!rc || rc == DS_PROTO || rc == DS_TEMP || rc == DS_UNAVAILABLE);
}

/* Every call ends soon, with nothing or an error, and the session can be used on. */
static void test_fake(size_t i)
{
	static struct fake fakes[ARRAY_LEN(kinds)]; /* threads may look at one for a while */
	struct fake *f = &fakes[i];
	int64_t longest = 0;
	unsigned strange = 0;
	pthread_t thread;
	char addr[200];
	struct use u;

	*f = (struct fake){ .slots = kinds[i].slots, .reply = kinds[i].reply, .repeat = kinds[i].repeat,
		.closes = kinds[i].closes };
	thread = fake_begin(f);
	snprintf(addr, sizeof addr, "redis%s://127.0.0.1:%d", f->slots ? "-cluster" : "", f->port);
	u = use(addr, NULL);
	for (int k = 0; k < 10; k++) {
		int64_t begin = time_mono_ns();

		store_deadline(u.ss, begin + 60 * MS);
		strange += !call(&u, k);
		if (time_mono_ns() - begin > longest)
			longest = time_mono_ns() - begin;
	}
	tap_ok(!strange && longest < 600 * MS && f->asked < 3000,
		"%s: every call ends, nothing is got (%lld ms, %u asked)", kinds[i].what, (long long)(longest / MS),
		f->asked);
	f->ending = true;
	leave(&u);
	shutdown(f->fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(f->fd);
}

int main(void)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		test_fake(i);
	usleep(50000); /* for the fakes' threads */
	return tap_done();
}
