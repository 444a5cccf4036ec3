//! The proleptic Gregorian calendar: days since 1970 to dates, and back.
//!
//! Years of 400 repeat; within them, counting from March puts the leap day last.

const DAYS_PER_ERA: i64 = 146_097;
/// From the 1st of March of the year 0 to 1970.
const EPOCH: i64 = 719_468;

/// Year, month and day of a number of days since 1970.
pub fn date(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, carry) = if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    (era * 400 + year_of_era + carry, month, day)
}

/// Days since 1970 of a date, if there is such a date.
pub fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if !(1..=month_days).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    Some(era * DAYS_PER_ERA + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - EPOCH)
}

#[cfg(test)]
mod tests {
    use super::{date, days};

    #[test]
    fn every_day_of_two_eras_has_the_date_that_follows_the_one_before() {
        let mut before = date(-DAYS - 1);
        for day in -DAYS..=DAYS {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), Some(day));
            let next = [(before.0, before.1, before.2 + 1), (before.0, before.1 + 1, 1), (before.0 + 1, 1, 1)]
                .into_iter()
                .find(|&(year, month, day)| days(year, month, day).is_some());
            assert_eq!(Some((year, month, of_month)), next);
            before = (year, month, of_month);
        }
    }

    #[test]
    fn the_calendar_begins_where_unix_does() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(days(2023, 2, 29), None);
        assert_eq!(days(1900, 2, 29), None);
        assert_eq!(days(2000, 2, 29), Some(11_016));
    }

    const DAYS: i64 = super::DAYS_PER_ERA;
}
