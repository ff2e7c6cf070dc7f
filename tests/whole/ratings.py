"""A table of ratings as users have it: five planted genres, awkward titles, duplicates and empty ids."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

GENRES = ("crime", "drama", "comedy", "horror", "animé")
FAVOURITE_SHARE = 0.85
"""Share of a user's ratings that go to the favourite genre; the others go to any movie."""


def genre_of(title: str) -> str:
    """The planted genre of a movie; its title ends with it."""
    return title.rsplit(" ", 1)[-1]


def write_ratings(path: Path, num_ratings: int = 30_290, *, seed: int = 7) -> None:
    """Write columns user, movie, stars: commas and accents in ids, 1 % duplicates, .3 % empty ids."""
    rng = np.random.default_rng(seed)
    num_users, num_movies = num_ratings // 15, num_ratings // 60
    movies = [_title(number) for number in range(num_movies)]
    favourites = rng.integers(len(GENRES), size=num_users)
    popularity = 1 / (10 + rng.permutation(num_movies))
    of_genre = np.arange(num_movies) % len(GENRES)
    shares = [popularity * (of_genre == genre) for genre in range(len(GENRES))]
    shares = [each / each.sum() for each in [*shares, popularity]]
    rows: list[Sequence[object]] = []
    for user in rng.integers(num_users, size=num_ratings):
        liked = favourites[user] if rng.random() < FAVOURITE_SHARE else -1
        movie = rng.choice(num_movies, p=shares[liked])
        rows.append((f"user-{user}" if user % 7 else f"Zoë {user}", movies[movie], rng.integers(1, 6)))
    for number in range(num_ratings // 100):
        rows[-1 - number] = rows[number]
    for number in range(num_ratings // 350):
        rows[number * 11] = ("", *rows[number * 11][1:])
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["user", "movie", "stars"])
        writer.writerows(rows)


def _title(number: int) -> str:
    form = ('The {}, a "{}" {}', "Amélie {} {} {}", "映画 {} {} {}")[number % 3]
    return form.format(number, number * 7, GENRES[number % len(GENRES)])
